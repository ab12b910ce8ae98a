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
    model: type[ApiModel] | None  # None: kept as it came

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
    meta: kube.Meta
    value: Any  # of the kind's model; of the object itself JSON

    @property
    def key(self) -> tuple[str, str]:
        return self.meta.namespace, self.meta.name


class Store:
    def __init__(self) -> None:
        self._items: dict[str, dict[tuple[str, str], Item]] = {kind.name: {} for kind in KINDS}
        self._of: dict[str, dict[Key, dict[str, Item]]] = {name: {} for name in CHILDREN}

    def put(self, kind: Kind, body: dict[str, Any]) -> Key | None:
        """Keep it unless a newer version is known -> whom it is news for, if it is."""
        meta = kube.Meta.model_validate(body["metadata"])
        known = self._items[kind.name].get((meta.namespace, meta.name))
        if known is not None and _version(known.meta) >= _version(meta):
            return None
        item = Item(meta, kind.model.model_validate(body) if kind.model else _as_json(body))
        self._forget(kind, known)
        self._items[kind.name][item.key] = item
        owner = self._owner(kind, meta)
        if kind is not OBJECT:
            self._of[kind.name].setdefault(owner, {})[meta.name] = item
        return owner

    def drop(self, kind: Kind, body: dict[str, Any]) -> Key | None:
        """It is gone -> whom that is news for. Not if it was made anew since."""
        meta = kube.Meta.model_validate(body["metadata"])
        known = self._items[kind.name].get((meta.namespace, meta.name))
        if known is None or known.meta.uid != meta.uid:
            return None
        self._forget(kind, known)
        return self._owner(kind, known.meta)

    def without(self, kind: Kind, listed: set[tuple[str, str]], version: int, namespaces: Iterable[str]) -> set[Key]:
        """Drop what a list of `namespaces` (none: all), taken at `version`, no longer held -> whom that is news for."""
        within = set(namespaces)
        gone = [
            item
            for key, item in self._items[kind.name].items()
            if key not in listed and _version(item.meta) <= version and (not within or key[0] in within)
        ]
        for item in gone:
            self._forget(kind, item)
        return {self._owner(kind, item.meta) for item in gone}

    def json_of(self, key: Key) -> bytes | None:
        """The object itself."""
        found = self._items[OBJECT.name].get(key)
        return found.value if found else None

    def children(self, kind: type[kube.T], key: Key) -> list[kube.T]:
        name = next(known.name for known in CHILDREN.values() if known.model is kind)
        return [item.value for item in self._of[name].get(key, {}).values()]

    def meta(self, kind: str, namespace: str, name: str) -> kube.Meta | None:
        found = self._items[kind].get((namespace, name))
        return found.meta if found else None

    def _forget(self, kind: Kind, item: Item | None) -> None:
        if item is None:
            return
        self._items[kind.name].pop(item.key, None)
        if kind is not OBJECT:
            owner = self._owner(kind, item.meta)
            mine = self._of[kind.name].get(owner, {})
            mine.pop(item.meta.name, None)
            if not mine:
                self._of[kind.name].pop(owner, None)

    @staticmethod
    def _owner(kind: Kind, meta: kube.Meta) -> Key:
        return Key(meta.namespace, meta.name if kind is OBJECT else meta.labels.get(names.NAME, ""))


def _version(meta: kube.Meta) -> int:
    return int(meta.resource_version or 0)


def _as_json(body: dict[str, Any]) -> bytes:
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    return json.dumps({**body, "metadata": metadata}).encode()
