"""On the PYTHONPATH of a worker: no CUDA graph can be captured, because something asks for the GPU in mid-capture.

A real failure of the driver's, brought about from outside; the worker has no switch for it.
"""

import contextlib
import importlib.util

if importlib.util.find_spec("torch"):
    import torch

    _enter = torch.cuda.graph.__enter__

    def _entered(self: torch.cuda.graph) -> None:
        _enter(self)
        with contextlib.suppress(RuntimeError):
            torch.cuda.current_stream().synchronize()  # not allowed while its work is recorded: ends the capture

    torch.cuda.graph.__enter__ = _entered  # type: ignore[method-assign]
