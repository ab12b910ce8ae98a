"""`python -m verify_tables.observe ENGINE FOLDER`: the facts of one version as JSON. Stand-ins stay in this process."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from tandem_worker.engines.table import load
from verify_tables import sglang, vllm

OBSERVE = {"sglang": sglang.observe, "vllm": vllm.observe}


def main(engine: str, folder: str) -> None:
    logging.disable()  # the engines' own warnings about names, which are counted here
    facts = OBSERVE[engine](Path(folder), dict(load(engine).table.targets))
    json.dump([fact._asdict() for fact in facts], sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
