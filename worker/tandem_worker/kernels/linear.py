"""A weight, and which tile multiplies it for how many rows.

The number of K splits belongs to the weight and never changes. Tiles were found by timing whole steps of the
Llama-3.1-8B shape on one H200; they change speed, not bits. Other shapes use the same tiles where they fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from torch import Tensor

from tandem_worker.kernels.gemm import gemm
from tandem_worker.kernels.launch import cdiv, descriptor, is_hopper, is_interpreted, launch


class Role(Enum):
    QKV = "qkv"
    OUT = "out"
    GATE_UP = "gate_up"
    DOWN = "down"
    HEAD = "head"


@dataclass(frozen=True)
class Tile:
    n: int  # weight rows
    m: int  # batch rows
    k: int
    stages: int
    warps: int = 4
    tail: int = 0  # batch rows of a second tile in the same program
    both: bool = False  # one program computes both K splits
    gluon: bool = False
    lag: bool = False


def _gluon(n: int, m: int, k: int, stages: int, warps: int = 4, tail: int = 0, lag: bool = False) -> Tile:
    return Tile(n, m, k, stages, warps, tail, gluon=True, lag=lag)


TILES: dict[int, dict[Role, Tile]] = {
    16: {
        Role.QKV: _gluon(128, 16, 128, 6),
        Role.OUT: _gluon(64, 16, 256, 3),
        Role.GATE_UP: _gluon(64, 16, 128, 3),
        Role.DOWN: _gluon(64, 16, 256, 3),
        Role.HEAD: _gluon(64, 16, 128, 11),
    },
    32: {
        Role.QKV: _gluon(64, 32, 256, 3),
        Role.OUT: _gluon(64, 32, 128, 9),
        Role.GATE_UP: _gluon(64, 32, 128, 3),
        Role.DOWN: _gluon(64, 32, 128, 6),
        Role.HEAD: _gluon(64, 32, 256, 2),
    },
    64: {
        Role.QKV: _gluon(128, 64, 64, 6, 8, lag=True),
        Role.OUT: _gluon(64, 64, 128, 3),
        Role.GATE_UP: _gluon(64, 64, 128, 2),
        Role.DOWN: _gluon(64, 64, 64, 12, lag=True),
        Role.HEAD: _gluon(128, 64, 128, 2),
    },
    128: {
        Role.QKV: _gluon(64, 128, 64, 4),
        Role.OUT: _gluon(64, 128, 64, 6, lag=True),
        Role.GATE_UP: Tile(64, 128, 64, 3),
        Role.DOWN: _gluon(64, 128, 64, 6, lag=True),
        Role.HEAD: Tile(128, 128, 64, 3, 8),
    },
    192: {
        Role.QKV: Tile(64, 128, 64, 6, tail=64, both=True),
        Role.OUT: Tile(64, 128, 64, 6, tail=64),
        Role.GATE_UP: _gluon(64, 128, 64, 2, tail=64),
        Role.DOWN: Tile(64, 128, 64, 6, tail=64),
        Role.HEAD: Tile(128, 128, 64, 4, 8, tail=64),
    },
    256: {
        Role.QKV: Tile(64, 128, 64, 3),
        Role.OUT: Tile(64, 256, 64, 4),
        Role.GATE_UP: Tile(64, 256, 64, 4, 8),
        Role.DOWN: Tile(64, 256, 64, 4, 8),
        Role.HEAD: Tile(128, 256, 64, 4, 8),
    },
}
PREFILL: dict[Role, Tile] = {
    Role.QKV: Tile(128, 128, 64, 4, 8, both=True),
    Role.OUT: Tile(128, 128, 64, 4, 8, both=True),
    Role.GATE_UP: Tile(128, 128, 64, 4, 8),
    Role.DOWN: Tile(128, 128, 64, 4, 8, both=True),
    Role.HEAD: Tile(128, 256, 64, 3, 8),
}
"""For more than 256 rows."""

INTERPRETED = Tile(32, 16, 32, 1)
"""Small, so that a test meets tiles that are not full."""


def tile_for(role: Role, rows: int, k_split: int, of_8_bits: bool = False) -> Tile:
    if is_interpreted():
        return INTERPRETED
    bucket = next((bucket for bucket in TILES if rows <= bucket), None)
    tile = TILES[bucket][role] if bucket else PREFILL[role]
    if of_8_bits:
        return for_8_bits(tile)
    fits = k_split % tile.k == 0 and k_split // tile.k >= tile.stages
    if tile.gluon and not (fits and is_hopper()):
        tile = replace(tile, gluon=False, lag=False, k=64, stages=3)
    return tile


def for_8_bits(tile: Tile) -> Tile:
    """Triton's own pipeline, because weights pass through registers on their way from shared memory. Chosen by what
    compiles for Hopper without spills, not by timing: a step is 1.16 to 1.6 times that of bfloat16, and slower for up
    to 16 rows than for 32 (benchmarks/README.md)."""
    if tile.m + tile.tail <= 64:
        return Tile(64, tile.m, 128, 4)
    stages = min(tile.stages, 4)
    return replace(tile, k=64, stages=stages, gluon=False, lag=False)


def k_splits(role: Role, k: int) -> int:
    """2 where a decode step gains by it and the border falls on a tile of any size; part of the arithmetic."""
    return 2 if role in (Role.QKV, Role.OUT, Role.DOWN) and k % 512 == 0 else 1


@dataclass
class Linear:
    """W [N, K], contiguous; for GATE_UP gate above up. Of 8 bits with `scale` [blocks of K, N] float32."""

    weight: Tensor
    role: Role
    scale: Tensor | None = None
    splits: int = 0  # of K; 0: as many as `k_splits` says
    outputs: int = field(init=False)
    _descriptors: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, k = self.weight.shape
        self.splits = self.splits or k_splits(self.role, k)
        self.outputs = n // 2 if self.role is Role.GATE_UP else n

    def __call__(self, x: Tensor, rows: int, y: Tensor, tile: Tile | None = None) -> int:
        """First `rows` rows of x [>= rows, K] -> y. Returns how many partials [rows, N] float32 y begins with, or 1.

        x is a whole buffer, so that it is described to the copy engine once; rows behind `rows` are read and dropped.
        """
        k_split = self.weight.shape[1] // self.splits
        tile = tile or tile_for(self.role, rows, k_split, self.scale is not None)
        here = self.splits if tile.both else 1
        grid = (cdiv(rows, tile.m + tile.tail), cdiv(self.outputs, tile.n), self.splits // here)
        w_desc = self._descriptor(self.weight, tile.n, tile.k, tile.gluon)
        x_desc = self._descriptor(x, tile.m, tile.k, tile.gluon)
        tail_desc = self._descriptor(x, tile.tail, tile.k, tile.gluon) if tile.tail else x_desc
        constants: dict[str, Any] = {
            "TILE_N": tile.n,
            "TILE_M": tile.m,
            "TAIL_M": tile.tail,
            "TILE_K": tile.k,
            "STAGES": tile.stages,
        }
        kernel: Any = gemm
        if tile.gluon:
            from tandem_worker.kernels.gemm_hopper import gemm_hopper as kernel  # not for the interpreter

            constants["LAG"] = int(tile.lag)
        else:
            scale_k = 0 if self.scale is None else self.weight.shape[1] // len(self.scale)
            constants |= {"SPLITS": here, "scale_ptr": y if self.scale is None else self.scale, "SCALE_K": scale_k}
        gated = self.role is Role.GATE_UP
        arguments = (w_desc, x_desc, tail_desc, y, rows, self.outputs, k_split)
        launch(kernel, grid, *arguments, warps=tile.warps, GATED=gated, **constants)
        return self.splits // here

    def _descriptor(self, tensor: Tensor, rows: int, columns: int, gluon: bool) -> Any:
        key = (tensor.data_ptr(), tensor.shape, rows, columns, gluon)
        if key not in self._descriptors:
            self._descriptors[key] = descriptor(tensor, [rows, columns], gluon)
        return self._descriptors[key]
