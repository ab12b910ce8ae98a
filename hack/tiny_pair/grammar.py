"""The words and the sentence forms of the text that the tiny pair learns.

A template is a format string. `TRAINING` and `HELD_OUT` share words and section kinds but no sentence form: prompts
are made of held-out templates, so that a pair is measured on sentences that it has never been trained on.
"""


def words(text: str, separator: str = " ") -> tuple[str, ...]:
    return tuple(text.split(separator))


NAMES = words(
    "Mira Tomas Ada Boris Clara Dario Elena Felix Greta Hugo Irene Jonas Karla Leon Marta Nils Olga Pavel Rosa Simon "
    "Tilda Ulrich Vera Walter"
)
CITIES = words("Oslo Porto Lyon Graz Turin Bergen Malaga Ghent Krakow Zagreb Aarhus Leipzig")
JOBS = words("baker carpenter pilot teacher gardener painter doctor sailor farmer tailor miller printer")
COLOURS = words("red green blue yellow white black brown silver orange purple")
THINGS = words(
    "apple basket bottle lamp stone ribbon kettle ladder blanket hammer mirror candle button anchor violin bucket"
)
SIZES = words("small large heavy narrow round broken ancient polished")
PLACES = words(
    "in the harbour;behind the old mill;near the river;under the bridge;beside the market;on the hill;at the station;"
    "across the square",
    ";",
)
PURPOSES = words(
    "to carry water;to hold the door;to light the room;to measure time;to repair the roof;to cross the valley;"
    "to cook the soup;to keep the bread warm",
    ";",
)
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words("January February March April May June July August September October November December")
NUMBERS = words("zero one two three four five six seven eight nine ten eleven twelve")
VERBS = (
    ("buys", "bought"),
    ("sells", "sold"),
    ("finds", "found"),
    ("repairs", "repaired"),
    ("carries", "carried"),
    ("paints", "painted"),
    ("borrows", "borrowed"),
    ("hides", "hid"),
)
VARIABLES = words("total count value result")

KINDS = (
    "story", "record", "question", "count", "entry", "code", "story", "question", "arithmetic", "echo", "sequence",
)  # fmt: skip
"""The usual order of a document's sections. With independent sections greedy text soon circles."""

TRAINING: dict[str, tuple[str, ...]] = {
    "story": (
        "{p} is a {job} from {city}. Every {day} {p} {does} a {size} {colour} {thing} {place}.",
        "The {job} {p} lives in {city} and needs the {colour} {thing} {purpose}.",
        "Last {month} {p} {did} a {colour} {thing} {place}. The {thing} was {size}, and it was made in {city} "
        "{purpose}.",
        "When {p} was in {city}, the {size} {thing} stood {place}. It was {colour}, and the {job} used it {purpose}.",
        "Some say that the {job} of {city} {does} only {size} things. {p} {does} a {colour} {thing}, every {day}, "
        "{place}.",
        "{p} and {q} met {place}. One had a {thing}, {size} and {colour}, made {purpose}; it came from {city}.",
    ),
    "record": (
        '{{"name": "{p}", "age": {age}, "city": "{city}", "job": "{job}", '
        '"item": {{"kind": "{thing}", "colour": "{colour}", "size": "{size}"}}}}',
        "- person: {p}\n  age: {age}\n  things: [{colour} {thing}, {other_thing}]\n  town: {city}",
    ),
    "question": (
        "Q: Where does {p} live?\nA: {p} lives in {city}.",
        "Q: What is the job of {p}?\nA: {p} is a {job}.",
        "Q: Which colour is the {thing} of {p}?\nA: The {thing} of {p} is {colour}.",
        "Q: How old is {p}?\nA: {p} is {age} years old.",
        "Q: Why does {p} need the {thing}?\nA: {p} needs the {thing} {purpose}.",
        "Q: In which town was the {thing} of {p} made, and how?\nA: In {city}; it was made {size}.",
    ),
    "count": (
        "{p} has {a} {thing}s and finds {b} more. Now {p} has {more} {thing}s.",
        "{p} has {a} {thing}s and loses {b}. Now {p} has {left}.",
        "Of {more} {thing}s, {b} went to {q} and {a} stayed with {p}.",
    ),
    "entry": (
        "{thing} (noun), plural {thing}s: a {size} thing, often {colour}, used {purpose}. See also: {other_thing}.",
        "* {other_thing}, see {thing}: made {purpose}. Of {colour} wood, {size}.",
    ),
    "code": (
        "def add_{thing}({variable}):\n    {variable} = {variable} + {n}\n    return {variable}\n\n"
        "assert add_{thing}({n}) == {twice}",
        'for {thing} in {thing}s:\n    if {thing}.colour == "{colour}":\n        {variable} += {n}\nprint({variable})',
        "class {Thing}:\n    def __init__(self, {variable}):\n        self.{variable} = {variable}\n\n"
        "    def double(self):\n        return self.{variable} * 2",
        "if {variable} > {n}:\n    {thing} = find({variable}, {twice})\nelse:\n    {thing} = None",
    ),
    "arithmetic": (
        "{x1} + {y1} = {z1}\n{z2} - {y2} = {x2}\n{x3} + {y3} = {z3}",
        "{z1} - {y1} = {x1}\n{x2} + {y2} = {z2}\n{z3} - {y3} = {x3}",
        "{x1} and {y1} make {z1}.",
    ),
    "echo": ("say: {words}\necho: {words}", "once {words}, twice {words}"),
    "sequence": ("Count: {numbers}.", "In order: {days}.", "In order: {months}.", "The days are {days}, and so on."),
}

HELD_OUT: dict[str, tuple[str, ...]] = {
    "story": (
        "In {month} the {size} {colour} {thing} of {p} was {place}; {p} {did} it there {purpose}.",
        "Nobody in {city} has a {thing} as {size} as {p}, the {job}, who {does} it every {day}.",
        "There is a {job} in {city}: {p}, {age} years old, with a {colour} {thing} {purpose}.",
    ),
    "record": (
        "name: {p}\njob: {job}\ncity: {city}\nitem: {size} {colour} {thing}",
        '["{thing}", "{colour}", "{size}", {age}, "{p}"]',
    ),
    "question": (
        "Q: Who has the {colour} {thing}?\nA: The {job} {p} has it.",
        "Q: Is the {thing} of {p} {size}?\nA: Yes, the {thing} is {size} and {colour}.",
    ),
    "count": ("There were {a} {thing}s {place}. Then {p} {did} {b} more, so there are {more} {thing}s.",),
    "entry": ("A {thing} is used {purpose}; the {thing} of {p} is {size} and {colour}.",),
    "code": (
        "while {variable} < {twice}:\n    {thing}s.append({variable})\n    {variable} += {n}",
        '{variable} = {{"{thing}": {n}, "{other_thing}": {twice}}}\nassert {variable}["{thing}"] == {n}',
    ),
    "arithmetic": ("{z1} = {x1} + {y1}\n{x2} = {z2} - {y2}",),
    "echo": ("words: {words}\nagain: {words}",),
    "sequence": ("From {day} on: {days}.", "The numbers {numbers} come in order."),
}
