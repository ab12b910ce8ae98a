# mypy: allow-untyped-defs
"""What Triton 3.6 and 3.9 call by different names in Gluon."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

request = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
"""Has the copy engine bring a block."""

_PRIVATE = gl.constexpr(not hasattr(gl.shared_memory_descriptor, "reinterpret"))


@gluon.jit
def reshaped(memory, shape: gl.constexpr, like):
    """The same shared memory in another shape, laid out like another one."""
    if _PRIVATE:
        same = memory._reinterpret(memory.dtype, shape, like.layout)
    else:
        same = memory.reinterpret(memory.dtype, shape, like.layout)
    return same
