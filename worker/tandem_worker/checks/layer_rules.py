"""How engines make capture indexes of layer ids, and which ids to write so that an engine captures given indexes.

Capture index i is the stream that enters decoder layer i; 0 is the embedding, n the stream after the last of n layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Indexes = tuple[int, ...]


def default_indexes(layers: int) -> Indexes:
    """What every engine captures when the config names no layers."""
    return (2, layers // 2, layers - 3)


def as_outputs(indexes: Indexes) -> Indexes:
    """The same streams, counted by the layer that they leave."""
    return tuple(i - 1 for i in indexes)


def _plus_one(ids: Indexes, layers: int) -> Indexes:
    return tuple(i + 1 for i in ids)


def _plus_one_if_first_is_1(ids: Indexes, layers: int) -> Indexes:
    return _plus_one(ids, layers) if ids and ids[0] == 1 else ids


def _verbatim_if_last_is_n(ids: Indexes, layers: int) -> Indexes:
    return ids if ids and max(ids) == layers else _plus_one(ids, layers)


RULES: Mapping[str, Callable[[Indexes, int], Indexes]] = {
    "verbatim": lambda ids, layers: ids,
    "plus_one": _plus_one,
    "plus_one_if_first_is_1": _plus_one_if_first_is_1,
    "verbatim_if_last_is_n": _verbatim_if_last_is_n,
}

SAID: Mapping[str, str] = {
    "verbatim": "ids are capture indexes",
    "plus_one": "ids are layers whose output is captured: capture index = id + 1",
    "plus_one_if_first_is_1": "ids are capture indexes, unless the first is 1: then capture index = id + 1",
    "verbatim_if_last_is_n": "ids are capture indexes if one is the number of layers, else capture index = id + 1",
}


def ids_for(indexes: Indexes, layers: int, rule: str) -> Indexes | None:
    """The list that makes an engine with this rule capture these indexes; None: there is none."""
    for ids in (indexes, as_outputs(indexes)):
        if RULES[rule](ids, layers) == indexes and (min(ids, default=0) >= 0 or rule == "plus_one"):
            return ids
    return None
