"""Builds kernels for an H200, without having one: the products by weights of 8 bits in every tile and the attention of
prompts, with what they take of registers, shared memory and stack. A stack that is not 0 means spills; of those, the
ones in the loops that multiply are counted.

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
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from tandem_worker.kernels.attention_hopper import attend_hopper
from tandem_worker.kernels.gemm import gemm
from tandem_worker.kernels.linear import PREFILL, TILES, Role, Tile, for_8_bits, k_splits

INPUTS = {Role.QKV: 4096, Role.OUT: 4096, Role.GATE_UP: 4096, Role.DOWN: 14336}
H200 = GPUTarget("cuda", 90, 32)
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
    return triton.compile(source, target=H200, options=options)


def attention_of_prompts() -> Any:
    """As `attend_prompts` launches it."""

    def blocks(*shape: int) -> str:
        return f"tensordesc<bf16{list(shape)},{gl.NVMMASharedLayout.get_default_for(list(shape), gl.bfloat16)!r}>"

    constants = {"HK": 8, "G": 4, "PDL": True, "num_warps": 4}
    types = {
        "q_desc": blocks(16, 4, 128),
        "k_desc": blocks(64, 64),
        "v_desc": blocks(64, 64),
        "out_ptr": "*bf16",
        "scale": "fp32",
        **dict.fromkeys(["position_ptr", "owner_ptr", "table_ptr", "tile_row_ptr", "tile_count_ptr"], "*i32"),
    }
    names = [parameter.name for parameter in attend_hopper.params]
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    fixed = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(names.index("out_ptr"),): [["tt.divisibility", 16]]}
    source = GluonASTSource(fn=attend_hopper, signature=signature, constexprs=fixed, attrs=aligned)
    options = {"num_warps": 4, "launch_pdl": True, "enable_fp_fusion": False}
    return triton.compile(source, target=H200, options=options)


def dumped(kernel: Any, what: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        said = subprocess.run([CUOBJDUMP, what, file.name], capture_output=True, text=True, check=True)
    return said.stdout + said.stderr


def usage(kernel: Any) -> str:
    said = dumped(kernel, "-res-usage")
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found, said
    return f"{found[1]} registers, stack {found[2]}, {kernel.metadata.shared} bytes shared"


def spills_where_it_multiplies(kernel: Any) -> int:
    """Loads and stores of spilled registers in the smallest loops around products."""
    found = re.finditer(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", dumped(kernel, "-sass"), re.MULTILINE)
    code = {int(at[1], 16): at[2] for at in found}
    back = {at: int(to[1], 16) for at, said in code.items() if (to := re.search(r"\bBRA\b.*?0x([0-9a-f]+)", said))}
    loops = [range(to, at + 1) for at, to in back.items() if to < at]
    products = [at for at, said in code.items() if "HGMMA" in said]
    inner = {min((loop for loop in loops if at in loop), key=len) for at in products}
    return sum(any(at in loop for loop in inner) for at, said in code.items() if re.search(r"\b(LDL|STL)\b", said))


def main() -> None:
    attention = attention_of_prompts()
    print(f"attention of prompts: {usage(attention)}; {spills_where_it_multiplies(attention)} spills in its loops")
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
