"""`python3 -m setup path | venv | constraints`: see the Makefile, which is the way to use it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from setup.constraints import write_constraints
from setup.environment import ensure_environment
from setup.requirements import environment_dir
from setup.steps import SetupError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m setup", description="Tandem's virtual environment.")
    parser.add_argument("command", choices=["path", "venv", "constraints"])
    command = parser.parse_args().command
    root = Path(__file__).resolve().parents[2]
    try:
        if command == "path":
            print(environment_dir(root))
        elif command == "venv":
            ensure_environment(root)
        else:
            write_constraints(root)
    except (SetupError, OSError) as error:  # an unwritable cache, a full disk
        print(f"tandem set-up: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
