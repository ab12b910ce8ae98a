"""Builds the products by weights of 8 bits for an H200, without having one: every tile, with what it takes of
registers, shared memory and stack. A stack that is not 0 means spills.

    PYTHONPATH=worker python hack/build_kernels.py

It shows that the compiler takes the kernel and how it multiplies; it shows no bits and no speed. Shapes of
Llama-3.1-8B.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tandem_worker.kernels.gemm import gemm
from tandem_worker.kernels.linear import PREFILL, TILES, Role, Tile, for_8_bits, k_splits

INPUTS = {Role.QKV: 4096, Role.OUT: 4096, Role.GATE_UP: 4096, Role.DOWN: 14336}
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def built(role: Role, tile: Tile, weight: str, scale_k: int) -> Any:
    constants: dict[str, Any] = {
        "TILE_N": tile.n,
        "TILE_M": tile.m,
        "TAIL_M": tile.tail,
        "TILE_K": tile.k,
        "GATED": role is Role.GATE_UP,
        "SPLITS": k_splits(role, INPUTS[role]) if tile.both else 1,
        "STAGES": tile.stages,
        "SCALE_K": scale_k,
        "PDL": True,
    }
    types = {
        "w_desc": f"tensordesc<{weight}[{tile.n},{tile.k}]>",
        "x_desc": f"tensordesc<bf16[{tile.m},{tile.k}]>",
        "tail_desc": f"tensordesc<bf16[{tile.tail or tile.m},{tile.k}]>",
        "y_ptr": "*bf16" if role is Role.GATE_UP else "*fp32",
        "scale_ptr": "*fp32",
    }
    names = [parameter.name for parameter in gemm.params]
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in ("y_ptr", "scale_ptr", "N", "K_SPLIT")}
    source = ASTSource(fn=gemm, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": tile.warps, "launch_pdl": True}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def usage(kernel: Any) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        said = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", said.stdout + said.stderr)
    assert found, said
    return f"{found[1]} registers, stack {found[2]}, {kernel.metadata.shared} bytes shared"


def main() -> None:
    for weight in ("fp8e4nv", "i8"):
        for rows, tiles in (*TILES.items(), ("more", PREFILL)):
            for role, inputs in INPUTS.items():
                for scale_k in (inputs, 128):
                    kernel = built(role, for_8_bits(tiles[role]), weight, scale_k)
                    multiplied = sorted(
                        set(re.findall(r"(?:wgmma|mma)[\w.]*m64n\d+k16|mma\.sync[\w.]*", kernel.asm["ptx"]))
                    )
                    kinds = ", ".join(name.replace(".mma_async.sync.aligned", "") for name in multiplied)
                    print(f"{weight} {role.value} rows {rows} block {scale_k}: {usage(kernel)}; {kinds}", flush=True)


if __name__ == "__main__":
    main()
