"""How many replicas each revision gets now.

Every revision has a wanted number (its share of the traffic, which is replica-weighted). From the present counts we
move towards it without ever exceeding `replicas + max_surge` workers, nor going below `replicas - max_unavailable`
ready ones. Room is used in the order given (the canary first, or the revision that is being restored); what has to go
gives up workers that are not ready before ready ones. Repeated passes converge; each pass is safe on its own, whatever
crash or hand edit produced the present counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, gcd
from typing import NamedTuple

from tandem_operator.plan.conditions import count


class Present(NamedTuple):
    desired: int
    ready: int


def shares(replicas: int, weight: int, max_surge: int) -> tuple[int, int]:
    """(stable, canary) workers at `weight` percent.

    A weight below 100 is never rounded to none or to all: each revision has a worker wherever two fit.
    """
    if replicas == 0:
        return 0, 0
    if weight >= 100:
        return 0, replicas
    room = replicas + max_surge
    canary = min(replicas, max(1, room - 1), ceil(replicas * weight / 100))
    stable = min(ceil(replicas * (100 - weight) / 100), room - canary)
    return stable, canary


def share(stable: int, canary: int) -> int:
    """Of the canary in percent, of so many workers; one that has a part is not rounded to none, nor to all."""
    if not stable or not canary:
        return 100 if canary else 0
    return min(99, max(1, round(100 * canary / (stable + canary))))


def told_share(replicas: int, weight: int, max_surge: int) -> str:
    """What the weight comes to, in words, and how it could be what it says."""
    stable, canary = shares(replicas, weight, max_surge)
    is_share = share(stable, canary)
    text = f"{canary} of {count(stable + canary, 'worker')}, a share of {is_share} %"
    if is_share == weight:
        return text
    if not stable:
        return f"{text}: no other worker fits beside it"
    return f"{text}: {count(replicas, 'replica')} can't express {weight} %, {100 // gcd(weight, 100)} can"


def next_counts(
    wanted: Mapping[str, int], present: Mapping[str, Present], replicas: int, max_surge: int, max_unavailable: int
) -> dict[str, int]:
    """Desired replicas of every revision named in `wanted` (order: who gets room first) or `present` (else 0)."""
    names = [*wanted, *(name for name in present if name not in wanted)]
    now = {name: present.get(name, Present(0, 0)) for name in names}
    counts = {name: now[name].desired for name in names}
    spare_ready = sum(min(p.ready, p.desired) for p in now.values()) - max(0, replicas - max_unavailable)
    for name in reversed(names):
        excess = counts[name] - wanted.get(name, 0)
        if excess <= 0:
            continue
        unready = max(0, now[name].desired - now[name].ready)
        free = min(excess, unready)
        give_up = min(excess - free, max(0, spare_ready))
        spare_ready -= give_up
        counts[name] -= free + give_up
    room = replicas + max_surge - sum(counts.values())
    room += _lent(names, wanted, now, counts, room)
    for name in names:
        more = min(max(0, wanted.get(name, 0) - counts[name]), max(0, room))
        counts[name] += more
        room -= more
    return counts


def _lent(
    names: list[str], wanted: Mapping[str, int], now: Mapping[str, Present], counts: dict[str, int], room: int
) -> int:
    """How many workers that are not ready are given up, in `counts`, for those who are first in line.

    What is no longer wanted may have to stay, being all that is ready, in the room of the canary. Then what does not
    get ready steps aside, or nothing would ever move again.
    """
    held = sum(max(0, counts[name] - wanted.get(name, 0)) for name in names)
    lent = 0
    for place in range(len(wanted) - 1, 0, -1):
        needed = sum(max(0, wanted[first] - counts[first]) for first in names[:place]) - room - lent
        unready = counts[names[place]] - min(now[names[place]].ready, counts[names[place]])
        more = max(0, min(held - lent, needed, unready))
        counts[names[place]] -= more
        lent += more
    return lent
