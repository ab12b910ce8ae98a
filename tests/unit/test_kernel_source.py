"""What the interpreter does not show of kernels, since it runs them as Python, and their source does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tandem_worker import kernels

FILES = sorted(Path(kernels.__file__).parent.glob("*.py"))


class Copy(NamedTuple):
    """A name is set to what another one stands for."""

    line: int
    names: tuple[str, str]


def copies(node: ast.AST) -> Iterator[Copy]:
    for one in ast.walk(node):
        if isinstance(one, ast.Assign):
            target, value = one.targets[0], one.value
            both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            pairs = zip(target.elts, value.elts, strict=True) if both else [(target, value)]  # type: ignore[attr-defined]
            for a, b in pairs:
                if isinstance(a, ast.Name) and isinstance(b, ast.Name):
                    yield Copy(one.lineno, (a.id, b.id))


def not_carried(source: str) -> list[str]:
    """`a = b` in a loop of a kernel, where it also stands before the loop.

    Triton compiles a loop's body once to see which names have another value behind it than before, and carries those
    from one turn to the next. An `a` that begins as b, and is set to b before b changes, has the same value in both
    places. So it is not carried: in every turn, and behind the loop, it is what it was before. The interpreter, which
    runs Python, does not do that. `a = b + 0` makes a value of its own.
    """
    return [
        f"line {inside.line}: {' = '.join(inside.names)}"
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef) and "jit" in "".join(map(ast.unparse, function.decorator_list))
        for loop in ast.walk(function)
        if isinstance(loop, ast.For | ast.While)
        for inside in copies(loop)
        if any(before.names == inside.names and before.line < loop.lineno for before in copies(function))
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_loops_of_kernels_carry_what_they_set(file: Path) -> None:
    assert not_carried(file.read_text()) == []


KERNEL = """
@triton.jit
def kernel(above, edge, n):
    base, kept = above, n
    {loop}:
        {body}
        above = above + n
"""


@pytest.mark.parametrize("loop", ["for _ in range(n)", "while above < n"])
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("base, edge = above, edge >> 1", ["line 6: base = above"]),
        ("base = above", ["line 6: base = above"]),
        ("base += above", []),
        ("base = above + 0", []),
        ("kept = above", []),  # begins as something else, so it is carried
    ],
)
def test_a_name_that_begins_as_another_one_is_found(loop: str, body: str, told: list[str]) -> None:
    assert not_carried(KERNEL.format(loop=loop, body=body)) == told
