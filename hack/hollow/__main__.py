"""`python -m hollow DIRECTORY NODE_ADDRESS`: started by the cluster's supervisor, ended by SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from pathlib import Path

from hollow.fates import Fates
from hollow.node import HollowNode
from localcluster.agent.api import connect
from localcluster.settings import Layout


async def main() -> None:
    layout, address = Layout(Path(sys.argv[1])), sys.argv[2]
    api = await connect(layout.agent_kubeconfig)
    task = asyncio.current_task()
    assert task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await HollowNode(api, address.removesuffix(".0.1"), Fates(layout.fates)).run()
    finally:
        await api.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    asyncio.run(main())
