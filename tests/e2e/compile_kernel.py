"""Runs inside the worker's image, without a GPU: compiles one of its kernels to machine code, and Triton's launcher.

A launcher is C that is compiled at run time: it needs the image's C compiler, Python's headers and a writable cache.
It is linked with the driver's libcuda.so.1, which a node with a GPU brings; an empty library of that name stands in,
so what is built here can not be loaded.
"""

import os
import subprocess
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver
from triton.runtime.build import compile_so_from_file

from tandem_worker.kernels.norm import WARPS, _add_norm

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    "partial_ptr": "*fp32",
    "from_ptr": "*bf16",
    "rows_ptr": "*i64",
    "residual_ptr": "*bf16",
    "gain_ptr": "*bf16",
    "out_ptr": "*bf16",
    "stream_ptr": "*bf16",
}
CONSTANTS = {"H": 4096, "H_PADDED": 4096, "S": 2, "GATHER": False, "CAPTURE": True, "PDL": True}


def main() -> None:
    types = POINTERS | {"stream_stride": "i32", "M": "i32", "eps": "fp32"} | dict.fromkeys(CONSTANTS, "constexpr")
    source = triton.compiler.ASTSource(_add_norm, types, CONSTANTS)
    compiled = triton.compile(source, target=HOPPER, options={"num_warps": WARPS, "launch_pdl": True})
    print(f"kernel of {len(compiled.asm['cubin'])} bytes for {compiled.metadata.target.arch}")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["gcc", "-shared", "-o", f"{folder}/libcuda.so.1", "-x", "c", "/dev/null"], check=True)
        launcher = compile_so_from_file(
            os.path.join(driver.dirname, "driver.c"),
            "cuda_utils",
            library_dirs=[driver.libdevice_dir, folder],
            include_dirs=driver.include_dirs,
            libraries=driver.libraries,
        )
    print(f"launcher in {launcher}, uid {os.getuid()}")


if __name__ == "__main__":
    main()
