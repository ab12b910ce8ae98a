"""Classes and functions of an engine's sources as syntax trees, and running one of them alone."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

OTHERS = {"amd", "rocm", "xpu", "cpu", "tpu"}


class ClassDef(NamedTuple):
    node: ast.ClassDef
    module: str  # name of the file
    bases: tuple[str, ...]


class Models:
    """All classes of a folder of model files, and with `deep` of the folders in it, but those of other makers' chips.
    What is not found is looked for in `beyond`.
    """

    def __init__(self, folder: Path, deep: bool = False, beyond: Models | None = None) -> None:
        self.folder, self.deep, self.beyond = folder, deep, beyond
        self._imports: dict[str, dict[str, tuple[str, str]]] = {}

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        files = self.folder.rglob("*.py") if self.deep else self.folder.glob("*.py")
        steps = {file: _steps(file, self.folder) for file in sorted(files)}
        return {".".join(path): ast.parse(file.read_bytes()) for file, path in steps.items() if not OTHERS & {*path}}

    @cached_property
    def classes(self) -> dict[tuple[str, str], ClassDef]:
        """(file, class) -> definition."""
        return {
            (module, node.name): ClassDef(node, module, tuple(_last_name(base) for base in node.bases))
            for module, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        }

    def find(self, name: str, near: str = "") -> ClassDef | None:
        """The class of this name: in the same file, as that file imports it, or anywhere."""
        if (near, name) in self.classes:
            return self.classes[near, name]
        origin = self._imported(near).get(name)
        if origin and origin in self.classes:
            return self.classes[origin]
        found = [known for (_, other), known in self.classes.items() if other == name]
        if found:
            return found[0]
        if name in self.renamed:
            return self.find(self.renamed[name])
        return self.beyond.find(name) if self.beyond is not None else None

    def lineage(self, start: ClassDef) -> Iterator[ClassDef]:
        """A class and what it inherits from, nearest first."""
        seen: list[ClassDef] = []
        waiting = [start]
        while waiting:
            current = waiting.pop(0)
            if current in seen:
                continue
            seen.append(current)
            yield current
            for base in current.bases:
                parent = self.find(base, current.module)
                if parent and parent is not current:
                    waiting.append(parent)

    def method(self, start: ClassDef, name: str) -> tuple[ClassDef, ast.FunctionDef] | None:
        for owner in self.lineage(start):
            for node in owner.node.body:
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return owner, node
        return None

    @cached_property
    def renamed(self) -> dict[str, str]:
        """Names that an import gives to a class -> the class's own."""
        names = (item for module in self.trees for item in self._imported(module).items())
        return {name: original for name, (_, original) in names if name != original}

    def _imported(self, module: str) -> dict[str, tuple[str, str]]:
        if module not in self._imports:
            self._imports[module] = self._read_imports(module)
        return self._imports[module]

    def _read_imports(self, module: str) -> dict[str, tuple[str, str]]:
        """name -> (file, name there)"""
        tree = self.trees.get(module)
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)] if tree else []
        return {
            alias.asname or alias.name: ((node.module or "").rsplit(".", 1)[-1], alias.name)
            for node in reversed(imports)  # of two imports under one name, the first: the one for CUDA
            for alias in node.names
        }


def function(node: ast.FunctionDef, **names: Any) -> Callable[..., Any]:
    """One function, compiled alone: annotations and decorators gone, `names` as its globals."""
    bare = copy.deepcopy(node)
    bare.decorator_list, bare.returns = [], None
    _without_annotations(bare.args)
    tree = ast.fix_missing_locations(ast.Module(body=[bare], type_ignores=[]))
    space: dict[str, Any] = dict(names)
    exec(compile(tree, node.name, "exec"), space)
    made: Callable[..., Any] = space[node.name]
    return made


def functions(file: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(file.read_bytes())
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def _steps(file: Path, folder: Path) -> tuple[str, ...]:
    return file.relative_to(folder).with_suffix("").parts


def _without_annotations(arguments: ast.arguments) -> None:
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        argument.annotation = None


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
