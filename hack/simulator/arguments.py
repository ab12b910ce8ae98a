"""The command line of `tandem-worker serve`, as far as the operator uses it."""

import argparse
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tandem_worker.contract import WORKER_PORT


class Arguments(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    target: str
    drafter: str | None
    draft_length: int
    model: str
    revision: str
    host: str
    port: int
    no_speculation: bool
    target_fingerprint: str | None
    drafter_fingerprint: str | None
    operator_key_file: Path | None
    pod_uid: str | None
    termination_message: Path | None


def parse_arguments(argv: list[str]) -> tuple[Arguments, list[str]]:
    """-> what is understood, and the rest, which is ignored: the worker's options grow faster than the simulator."""
    parser = argparse.ArgumentParser(prog="simulator", description=__doc__, allow_abbrev=False)
    serve = parser.add_subparsers(dest="command", required=True).add_parser("serve", allow_abbrev=False)
    serve.add_argument("--target", required=True)
    serve.add_argument("--drafter")
    serve.add_argument("--draft-length", type=int, default=4)
    serve.add_argument("--model", default="simulated")
    serve.add_argument("--revision", default="")
    serve.add_argument("--host", default="0.0.0.0")
    serve.add_argument("--port", type=int, default=WORKER_PORT)
    serve.add_argument("--no-speculation", action="store_true")
    serve.add_argument("--target-fingerprint")
    serve.add_argument("--drafter-fingerprint")
    serve.add_argument("--operator-key-file")
    serve.add_argument("--pod-uid")
    serve.add_argument("--termination-message")
    known, unknown = parser.parse_known_args(argv)
    return Arguments.model_validate(vars(known)), unknown
