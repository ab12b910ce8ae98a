"""The process that renders chat templates: a line of JSON in, a line of JSON out, see `template.Sandbox`.

It imports nothing but jinja2: libraries of numbers reserve address space for each core of the machine, which on a large
one is more than a template may have. The limit is on what comes on top of what the interpreter has at its start.
The functions and filters are those that transformers gives to templates.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_LIMIT_BYTES = 512 * 1024 * 1024


class Generation(Extension):
    """`{% generation %}` marks the assistant's own words for training; what is within is rendered as if it were not."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=4)  # a server has one
def _compiled(source: str) -> Template:
    def raise_exception(message: str) -> NoReturn:
        raise ValueError(message)

    def to_json(value: object, indent: int | None = None, **_: object) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    extensions = [loopcontrols, Generation]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def _rendered(asked: dict[str, Any]) -> list[str]:
    template = _compiled(asked["source"])
    more = {"add_generation_prompt": asked["add_generation_prompt"], **asked["tokens"]}
    return [template.render(messages=talk, **more) for talk in asked["talks"]]


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    limit = math.ceil(time.process_time()) + asked["seconds"]
    resource.setrlimit(resource.RLIMIT_CPU, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
    try:
        return {"texts": _rendered(asked)}
    except MemoryError:
        return {"failed": f"it needs more than {MEMORY_LIMIT_BYTES >> 20} MiB"}
    except Exception as failure:
        return {"failed": f"{type(failure).__name__}: {failure}"}


def main() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps(_answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
