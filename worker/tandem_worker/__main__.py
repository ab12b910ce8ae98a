"""`tandem-worker`. The static commands start without what the other ones import."""

from __future__ import annotations

import gc
import os
import signal
import sys

EXIT_BROKEN_PIPE = 141  # as a shell tells of SIGPIPE


def end_when_told() -> None:
    """SIGTERM ends this process at once, as it does any other. The first process of a container has to ask for that:
    for it the kernel drops signals without a handler. Who has something to finish sets a handler of its own."""
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))


def main() -> None:
    end_when_told()
    if sys.argv[1:2] in (["check"], ["explain"], ["convert"]):
        gc.disable()  # over in a second: walking the headers of a large target takes longer than what it frees is worth
    if sys.argv[1:2] == ["convert"]:
        from tandem_worker.convert.command import main as convert

        sys.exit(convert(sys.argv[2:]))
    if sys.argv[1:2] in (["check"], ["explain"]):
        from tandem_worker import check

        command = check.check if sys.argv[1] == "check" else check.explain
        try:
            sys.exit(command(sys.argv[2:]))
        except BrokenPipeError:  # whoever reads has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(EXIT_BROKEN_PIPE)
    from tandem_worker.command import app

    app()


if __name__ == "__main__":
    main()
