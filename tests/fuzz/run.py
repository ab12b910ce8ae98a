"""`python -m fuzz.run TARGET LIBFUZZER-OPTIONS...`: one run of one target, in a process of its own."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["tandem_worker", "fuzz.targets"]):
    from fuzz.targets import TARGETS

if __name__ == "__main__":
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
