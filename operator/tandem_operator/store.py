"""What the API server last told, by kind and by owner, so that a pass over a thousand objects asks for nothing.

Three sources feed it: the watches, a list of everything now and then (which also finds what a deaf watch missed and
what is gone), and the answers to the operator's own writes: it always sees what it did itself. Of two versions of an
object the newer stays, whichever came last; versions of one kind are ordered numbers.

So what is seen may be a moment old, each kind for itself. The plan is made for that: tests/model lets it see any mix.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from tandem_operator import kube, names
from tandem_operator.api import GROUP, PLURAL, VERSION
from tandem_operator.api.base import ApiModel
from tandem_operator.queue import Key


class Kind(NamedTuple):
    name: str
    group: str
    version: str
    plural: str
    model: type[ApiModel] | None  # what is read of it; None: all

    def path_of_all(self, namespace: str) -> str:
        """Of one namespace, or, if that is empty, of all."""
        group = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return group + (f"/namespaces/{namespace}" if namespace else "") + f"/{self.plural}"


OBJECT = Kind("SpeculativeDeployment", GROUP, VERSION, PLURAL, None)
CHILDREN = {
    kind.name: kind
    for kind in (
        Kind("Deployment", "apps", "v1", "deployments", kube.DeploymentObject),
        Kind("ControllerRevision", "apps", "v1", "controllerrevisions", kube.ControllerRevisionObject),
        Kind("Job", "batch", "v1", "jobs", kube.JobObject),
        Kind("Pod", "", "v1", "pods", kube.PodObject),
        Kind("Service", "", "v1", "services", kube.ServiceObject),
    )
}
KINDS = (OBJECT, *CHILDREN.values())


class Item(NamedTuple):
    """`text` is JSON: of the object itself all of it, of a child what its model reads.

    Trees of models, of a thousand objects with their children, would be half a million things for Python's garbage
    collector to look at, more than half a second at a time in which nothing else is done.
    """

    uid: str
    version: int
    owner: Key
    text: bytes


class Store:
    def __init__(self) -> None:
        self._items: dict[str, dict[tuple[str, str], Item]] = {kind.name: {} for kind in KINDS}
        self._of: dict[str, dict[Key, set[str]]] = {name: {} for name in CHILDREN}  # names of children

    def put(self, kind: Kind, body: dict[str, Any]) -> Key | None:
        """Keep it unless a newer version is known -> whom it is news for, if it is."""
        meta = kube.Meta.model_validate(body["metadata"])
        at, version = (meta.namespace, meta.name), int(meta.resource_version or 0)
        known = self._items[kind.name].get(at)
        if known is not None and known.version >= version:
            return None
        self._forget(kind, at)
        owner = Key(meta.namespace, meta.name if kind is OBJECT else meta.labels.get(names.NAME, ""))
        self._items[kind.name][at] = Item(meta.uid, version, owner, _as_json(kind, body))
        if kind is not OBJECT:
            self._of[kind.name].setdefault(owner, set()).add(meta.name)
        return owner

    def drop(self, kind: Kind, body: dict[str, Any]) -> Key | None:
        """It is gone -> whom that is news for. Not if it was made anew since."""
        meta = kube.Meta.model_validate(body["metadata"])
        known = self._items[kind.name].get((meta.namespace, meta.name))
        if known is None or known.uid != meta.uid:
            return None
        self._forget(kind, (meta.namespace, meta.name))
        return known.owner

    def without(self, kind: Kind, listed: set[tuple[str, str]], version: int, namespaces: Iterable[str]) -> set[Key]:
        """Drop what a list of `namespaces` (none: all), taken at `version`, no longer held -> whom that is news for."""
        within = set(namespaces)
        gone = {
            at: item.owner
            for at, item in self._items[kind.name].items()
            if at not in listed and item.version <= version and (not within or at[0] in within)
        }
        for at in gone:
            self._forget(kind, at)
        return set(gone.values())

    def json_of(self, key: Key) -> bytes | None:
        """The object itself."""
        found = self._items[OBJECT.name].get(key)
        return found.text if found else None

    def children(self, kind: type[kube.T], key: Key) -> list[kube.T]:
        name = next(known.name for known in CHILDREN.values() if known.model is kind)
        items = self._items[name]
        return [
            kind.model_validate_json(items[key.namespace, child].text) for child in sorted(self._of[name].get(key, ()))
        ]

    def meta(self, kind: str, namespace: str, name: str) -> kube.Meta | None:
        found = self._items[kind].get((namespace, name))
        return kube.Named.model_validate_json(found.text).metadata if found else None

    def _forget(self, kind: Kind, at: tuple[str, str]) -> None:
        item = self._items[kind.name].pop(at, None)
        if item is None or kind is OBJECT:
            return
        mine = self._of[kind.name][item.owner]
        mine.discard(at[1])
        if not mine:
            del self._of[kind.name][item.owner]


def _as_json(kind: Kind, body: dict[str, Any]) -> bytes:
    if kind.model:
        return kind.model.model_validate(body).model_dump_json(by_alias=True, exclude_unset=True).encode()
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    return json.dumps({**body, "metadata": metadata}).encode()
