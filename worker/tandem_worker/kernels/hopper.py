# mypy: allow-untyped-defs
"""What Triton 3.6 and 3.9 call by different names in Gluon."""

from triton.experimental.gluon.language.nvidia.hopper import tma

request = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
"""Has the copy engine bring a block."""
