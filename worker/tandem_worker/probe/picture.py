"""The two pictures of a probe, as inline SVG and as colour blocks for a terminal.

The heat map has a row for each of fc's slots and a column for each stream of the target: how well the drafter predicts
when that slot is fed that stream, and the others what suits them best: around the wiring that explains the acceptance
where one was found, else around the engine's. What the engine captures is framed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from rich.text import Text

from tandem_worker.probe.evidence import share
from tandem_worker.probe.search import Table
from tandem_worker.probe.wiring import Wiring

CELL, LEFT, TOP = 30, 56, 34
LABEL = 20  # of a column, two digits wide
CAPTION = 440  # as wide as the longest line of words
COLD, WARM = (244, 241, 234), (15, 98, 102)
ENGINE, MENDED = "#b4552d", "#0f6266"


@dataclass(frozen=True)
class HeatMap:
    values: tuple[tuple[float, ...], ...]  # [slots][layers + 1] overlap
    captured: tuple[int, ...]  # by the engine

    @property
    def largest(self) -> float:
        return max((value for row in self.values for value in row), default=0.0)


def heat_map(table: Table, best: Wiring | None = None) -> HeatMap | None:
    """None: fc is skipped, so there are no slots."""
    engine = table.engine.wiring
    for around in (best, engine):
        if around is None or not around.fused or len(around.capture) != len(engine.capture):
            continue
        slots, layers = range(len(around.capture)), range(table.layers + 1)
        fed = [[replace(around, capture=_with(around.capture, slot, layer)) for layer in layers] for slot in slots]
        if all(wiring in table.looked for row in fed for wiring in row):
            rows = tuple(tuple(_overlap(table, wiring) for wiring in row) for row in fed)
            return HeatMap(rows, engine.capture)
    return None


def _with(capture: tuple[int, ...], slot: int, layer: int) -> tuple[int, ...]:
    return capture[:slot] + (layer,) + capture[slot + 1 :]


def _overlap(table: Table, wiring: Wiring) -> float:
    score = table.looked[wiring]
    return share(score.overlap, score.counts).value


def heat_svg(heat: HeatMap) -> str:
    slots, layers = len(heat.values), len(heat.values[0])
    cell = min(CELL, max(8, 900 // layers))
    width, height = LEFT + max(layers * cell + 8, CAPTION), TOP + slots * CELL + 26
    parts = [_text(LEFT, 14, "stream that feeds the slot (capture index; 0 is the embedding)")]
    step = next(step for step in (1, 2, 5, 10, layers) if step * cell >= LABEL or step == layers)
    for layer in range(0, layers, step):
        parts.append(_text(LEFT + layer * cell + cell / 2, TOP - 5, str(layer), "middle"))
    for slot, row in enumerate(heat.values):
        y = TOP + slot * CELL
        parts.append(_text(LEFT - 8, y + CELL * 0.65, f"slot {slot}", "end"))
        for layer, value in enumerate(row):
            said = f"slot {slot} from stream {layer}: overlap {value:.3f}"
            parts.append(
                f'<rect x="{LEFT + layer * cell}" y="{y}" width="{cell - 1}" height="{CELL - 1}" '
                f'fill="{_hex(_colour(value, heat.largest))}"><title>{said}</title></rect>'
            )
            if cell == CELL:  # wide enough for a figure
                ink = "#fff" if value > 0.6 * heat.largest else "#333"
                figure = f"{value:.2f}".replace("0.", ".", 1)
                parts.append(_text(LEFT + (layer + 0.5) * cell, y + CELL * 0.62, figure, "middle", ink))
        x = LEFT + heat.captured[slot] * cell
        parts.append(
            f'<rect x="{x + 1}" y="{y + 1}" width="{cell - 3}" height="{CELL - 3}" fill="none" stroke="{ENGINE}" '
            'stroke-width="2"/>'
        )
    parts.append(_text(LEFT, height - 8, f"darkest: overlap {heat.largest:.2f}; framed: what the engine captures"))
    return _svg(width, height, parts)


def positions_svg(rows: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Accepted at each draft position, as shares of all drafts. `rows`: the engine's wiring, and the mended one."""
    length = max(len(shares) for _, shares in rows)
    group, bar, high = 72, 24, 150
    parts = []
    for tick in (0.0, 0.5, 1.0):
        y = TOP + high * (1 - tick)
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{LEFT + length * group}" y2="{y}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{tick:g}", "end"))
    for place, (name, shares) in enumerate(rows):
        colour = (ENGINE, MENDED)[place % 2] if len(rows) > 1 else MENDED
        parts.append(f'<rect x="{LEFT + place * 110}" y="4" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(LEFT + place * 110 + 18, 14, name))
        for k, value in enumerate(shares):
            x, y = LEFT + k * group + 8 + place * bar, TOP + high * (1 - value)
            title = f"{name}, position {k}: {value:.3f}"
            parts.append(
                f'<rect x="{x}" y="{y:.1f}" width="{bar - 2}" height="{high * value:.1f}" fill="{colour}">'
                f"<title>{escape(title)}</title></rect>"
            )
    for k in range(length):
        parts.append(_text(LEFT + k * group + group / 2 - 4, TOP + high + 16, f"position {k}", "middle"))
    return _svg(LEFT + length * group + 120, TOP + high + 26, parts)


def heat_blocks(heat: HeatMap) -> Text:
    """For a terminal: two columns a stream; the engine's are marked."""
    text = Text("        " + "".join(f"{layer:<2}"[:2] for layer in range(len(heat.values[0]))) + "\n", "dim")
    for slot, row in enumerate(heat.values):
        text.append(f" slot {slot} ")
        for layer, value in enumerate(row):
            mark = "[]" if heat.captured[slot] == layer else "  "
            colour = _colour(value, heat.largest)
            ink = "white" if sum(colour) < 400 else "black"
            text.append(mark, f"{ink} on rgb({colour[0]},{colour[1]},{colour[2]})")
        text.append("\n")
    text.append(f" darkest: overlap {heat.largest:.2f}; []: what the engine captures", "dim")
    return text


def position_blocks(name: str, shares: Sequence[float]) -> Text:
    text = Text(f" {name:<10}")
    for value in shares:
        text.append("█" * round(10 * value), "cyan")
        text.append("·" * (10 - round(10 * value)) + f" {value:.2f}  ", "dim")
    return text


def _colour(value: float, largest: float) -> tuple[int, int, int]:
    part = value / largest if largest > 0 else 0.0
    red, green, blue = (round(cold + (warm - cold) * part) for cold, warm in zip(COLD, WARM, strict=True))
    return red, green, blue


def _hex(colour: tuple[int, int, int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


def _text(x: float, y: float, text: str, anchor: str = "start", ink: str = "#333") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{ink}">{escape(text)}</text>'


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="system-ui, sans-serif" font-size="12">{"".join(parts)}</svg>'
    )
