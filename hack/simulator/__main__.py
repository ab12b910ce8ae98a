"""python -m simulator serve --target DIR [--drafter DIR] ... : as `tandem-worker serve`, told by SIM_* variables."""

import sys
import time
from pathlib import Path

from aiohttp import web
from pydantic import ValidationError

from simulator.arguments import Arguments, parse_arguments
from simulator.behaviour import FAILURE_EXIT_CODES, Behaviour
from simulator.engine import Engine, found_fingerprints
from simulator.server import Server
from tandem_worker.contract import Fingerprints, WorkerFailure

DRAIN_SECONDS = 5.0


def count_start(state_file: Path) -> int:
    """-> this start's number, from 1; kept in the file."""
    number = int(state_file.read_text()) + 1 if state_file.exists() else 1
    state_file.write_text(str(number))
    return number


def failure_at_start(arguments: Arguments, behaviour: Behaviour) -> WorkerFailure | None:
    """What the worker would end with: as told, or because the files are not those that were validated."""
    found = found_fingerprints(arguments, behaviour)
    expected = Fingerprints(
        target=arguments.target_fingerprint or found.target,
        drafter=arguments.drafter_fingerprint or found.drafter,
    )
    if behaviour.failure_reason is None and expected == found:
        return None
    reason = behaviour.failure_reason or "CheckpointChanged"
    message = f"Simulated {reason}: expected {expected.model_dump_json()}, found {found.model_dump_json()}."
    return WorkerFailure(reason=reason, message=message, found=found)


def exit_code_at_start(arguments: Arguments, behaviour: Behaviour) -> int | None:
    """None: it starts."""
    start = count_start(behaviour.state_file) if behaviour.state_file else 1
    if start <= behaviour.crash_starts:
        print(f"simulator: start {start} of {behaviour.crash_starts} that were told to crash", flush=True)
        return behaviour.crash_exit_code
    failure = failure_at_start(arguments, behaviour)
    if failure is None:
        return None
    print(f"simulator: {failure.reason}: {failure.message}", flush=True)
    if arguments.termination_message:
        arguments.termination_message.write_text(failure.model_dump_json())
    return FAILURE_EXIT_CODES[failure.reason]


async def scheduled_app(arguments: Arguments, behaviour: Behaviour) -> web.Application:
    engine = Engine(arguments, behaviour)
    engine.schedule(Behaviour.model_fields)
    return Server(engine).app()


def main(argv: list[str]) -> int:
    arguments, unknown = parse_arguments(argv)
    if unknown:
        print(f"simulator: ignored {' '.join(unknown)}", flush=True)
    try:
        behaviour = Behaviour.from_environment()
    except ValidationError as failure:
        print(f"simulator: the SIM_ variables are not understood: {failure}", file=sys.stderr)
        return 2
    code = exit_code_at_start(arguments, behaviour)
    if code is not None:
        return code
    time.sleep(behaviour.start_after_seconds)
    web.run_app(
        scheduled_app(arguments, behaviour),
        host=arguments.host,
        port=arguments.port,
        handler_cancellation=True,
        shutdown_timeout=DRAIN_SECONDS,
        print=None,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
