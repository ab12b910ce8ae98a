"""The command lines that the operator uses: of `tandem-worker serve`, of SGLang's server, of `vllm serve`.

`sglang` and `vllm` in place of `serve` choose the engine that is imitated.
"""

import argparse
import json
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tandem_worker.contract import WORKER_PORT


class Imitated(StrEnum):
    TANDEM = "serve"
    SGLANG = "sglang"
    VLLM = "vllm"


class Arguments(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    command: Imitated = Imitated.TANDEM
    target: str
    drafter: str | None
    draft_length: int
    model: str
    revision: str = ""
    host: str
    port: int
    no_speculation: bool = False
    target_fingerprint: str | None = None
    drafter_fingerprint: str | None = None
    operator_key_file: Path | None = None
    pod_uid: str | None = None
    termination_message: Path | None = None


def parse_arguments(argv: list[str]) -> tuple[Arguments, list[str]]:
    """-> what is understood, and the rest, which is ignored: the worker's options grow faster than the simulator."""
    parser = argparse.ArgumentParser(prog="simulator", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    _sglang(commands.add_parser("sglang", allow_abbrev=False))
    _vllm(commands.add_parser("vllm", allow_abbrev=False))
    serve = commands.add_parser("serve", allow_abbrev=False)
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
    serve.add_argument("--drain-seconds")  # these two are for a worker that computes
    serve.add_argument("--baseline-probe")
    known, unknown = parser.parse_known_args(argv)
    told = vars(known)
    if speculation := told.get("speculation"):
        told |= {"drafter": speculation["model"], "draft_length": speculation["num_speculative_tokens"]}
    return Arguments.model_validate({"drafter": None, "draft_length": 4} | told), unknown


def _sglang(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model-path", required=True, dest="target")
    parser.add_argument("--speculative-draft-model-path", dest="drafter")
    parser.add_argument("--speculative-num-steps", type=int, default=4, dest="draft_length")
    parser.add_argument("--served-model-name", default="simulated", dest="model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)


def _vllm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target")
    parser.add_argument("--served-model-name", default="simulated", dest="model")
    parser.add_argument("--speculative-config", type=json.loads, default={}, dest="speculation")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
