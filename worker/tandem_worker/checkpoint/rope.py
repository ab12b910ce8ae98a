"""Rotary settings, as transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters) write them."""

from __future__ import annotations

from dataclasses import dataclass

from tandem_worker.checkpoint.config import Config
from tandem_worker.checkpoint.levels import Fact, Levels

PARAMETERS = ("rope_parameters", "rope_scaling")


@dataclass(frozen=True)
class Rope:
    """`thetas` are all that were declared, the first one counts; `theta` is that one or the default."""

    theta: Fact[float | None]
    thetas: tuple[Fact[float], ...]
    kind: str  # default, llama3, yarn, ...
    factor: float
    original_positions: int | None
    sections: tuple[int, ...] | None  # of mrope


def read_rope(levels: Levels, default_theta: float | None, whose: str) -> Rope:
    thetas: list[Fact[float]] = []
    top = levels.number("rope_theta")
    if top.value is not None:
        thetas.append(Fact(top.value, top.where))
    scaling: Levels | None = None
    for name in PARAMETERS:
        config = levels.nested_object(name)
        if config is None:
            continue
        inner = Levels([config, *_by_attention(config)], levels.problems)
        theta = inner.number("rope_theta")
        if theta.value is not None:
            thetas.append(Fact(theta.value, theta.where))
        scaling = scaling or inner
    theta_fact: Fact[float | None] = Fact(default_theta, "", whose if default_theta is not None else "")
    if thetas:
        theta_fact = Fact(thetas[0].value, thetas[0].where)
    if scaling is None:
        return Rope(theta_fact, tuple(thetas), "default", 1.0, None, None)
    return Rope(
        theta=theta_fact,
        thetas=tuple(thetas),
        kind=scaling.text("rope_type", "type", default="default").value or "default",
        factor=scaling.number("factor", default=1.0).value or 1.0,
        original_positions=scaling.integer("original_max_position_embeddings").value,
        sections=_sections(scaling),
    )


def _by_attention(config: Config) -> list[Config]:
    """Targets with several kinds of attention nest one set of parameters for each kind."""
    kinds = [name for name in config.names() if isinstance(config.raw(name), dict)]
    kinds.sort(key=lambda name: name != "full_attention")
    return [config.nested(name) for name in kinds]


def _sections(scaling: Levels) -> tuple[int, ...] | None:
    found = scaling.find("mrope_section")
    if found is None:
        return None
    level, name = found
    value = level.raw(name)
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return tuple(value)
    scaling.wrong(level, name, "a list of integers")
    return None
