"""`python -m demo run | cluster | down`: four acts, judged by themselves; or just a cluster with Tandem in it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from demo.acts import ACTS, GOOD, Act, Device, Ending, Figures, Stage
from demo.faults import faults
from demo.install import CLUSTERS, EXAMPLES, HOME, TINY_PAIR, install, prepare_checkpoints, provide_volume
from demo.judge import Check
from demo.load import read_prompts
from demo.pairs import CLAIM
from demo.watch import View, told
from demo.world import ActFailed, watched_world
from localcluster.cluster import Cluster, ClusterError
from localcluster.gpus import machine_gpus
from localcluster.settings import Gpu
from tools.once import ToolError

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
DEMO, STANDING = "demo", "tandem"
CLAIMED_GPUS, GPU_SHARES = 16, 8
LOG_COLUMNS = 140


@dataclass(frozen=True)
class Result:
    name: str
    passed: bool
    finished: bool
    seconds: float
    figures: Figures
    not_as_told: tuple[str, ...] = ()


@app.command()
def run(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster running afterwards.")] = False,
    device: Annotated[Device, typer.Option(help="What the workers run on.")] = Device.CPU,
    with_faults: Annotated[bool, typer.Option("--faults", help="Then the faults, too.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the acts and their figures here.")] = None,
) -> None:
    """Play the four acts on a fresh cluster, and what follows them."""
    console = Console(width=None if sys.stdout.isatty() else LOG_COLUMNS)
    view = View(console)
    Cluster(DEMO, CLUSTERS).stop()
    checkpoints = HOME / "checkpoints"
    prepare_checkpoints(checkpoints)
    acts = (*ACTS, *(faults(device) if with_faults else ()))
    gpus = machine_gpus() if device is Device.CUDA else ()
    cluster = _cluster(DEMO, view.say, checkpoints, outlives_caller=keep, gpus=gpus)
    try:
        provide_volume(cluster, CLAIM, checkpoints)
        results = asyncio.run(_play(cluster, view, device, acts))
    finally:
        if not keep:
            cluster.stop()
    console.print(_summary(results))
    if json_file:
        report = {
            "device": device,
            "gpus": [gpu.name for gpu in gpus],
            "date": datetime.now(UTC).date().isoformat(),
            "acts": [asdict(result) for result in results],
        }
        json_file.write_text(json.dumps(report, indent=2) + "\n")
    if keep:
        console.print(_next_commands(cluster), soft_wrap=True, markup=False, highlight=False)
    if len(results) < len(acts) or not all(result.passed for result in results):
        raise typer.Exit(1)


@app.command("cluster")
def standing_cluster() -> None:
    """Leave a cluster running with Tandem and a claim `examples` on examples/, and say how to use it."""
    cluster = _cluster(STANDING, print, EXAMPLES, outlives_caller=True)
    provide_volume(cluster, "examples", EXAMPLES)
    print(
        f"\nA cluster with Tandem is up. Type next:\n\n{_kubectl(cluster)}\n"
        f"  kubectl apply -f {EXAMPLES}/tiny.yaml\n  kubectl get specdep -w\n\n"
        "`make cluster-status` shows where each Service is served on this machine, `make cluster-down` ends it."
    )


@app.command()
def status() -> None:
    """Clusters of this checkout that run, and where their Services are served."""
    for name in (DEMO, STANDING):
        cluster = Cluster(name, CLUSTERS)
        if cluster.running():
            print(f"cluster {name}: KUBECONFIG={cluster.kubeconfig}")
            for service in cluster.services():
                print(f"  {service.dns_url}  is served at  {service.url}")


@app.command()
def down() -> None:
    """Stop what `run --keep` and `cluster` left running."""
    for name in (DEMO, STANDING):
        Cluster(name, CLUSTERS).stop()


def _cluster(
    name: str, say: Callable[[str], None], host_path: Path, outlives_caller: bool, gpus: Sequence[Gpu] = ()
) -> Cluster:
    say("control plane and node start (usually 10 s)")
    for gpu in gpus:
        say(f"{gpu.name}, {gpu.memory_mib} MiB, offered {GPU_SHARES} times: its workers take turns on it")
    cluster = Cluster.start(
        name, CLUSTERS, outlives_caller=outlives_caller, gpus=gpus or CLAIMED_GPUS, gpu_shares=GPU_SHARES
    )
    say("CRD, rights and operator are applied; the operator starts under its own service account (usually 10 s)")
    try:
        install(cluster, allowed_host_paths=(host_path,))
    except ClusterError:
        cluster.stop()
        raise
    return cluster


async def _play(cluster: Cluster, view: View, device: Device, acts: Sequence[tuple[str, Act]]) -> list[Result]:
    results: list[Result] = []
    async with watched_world(str(cluster.kubeconfig)) as world:
        world.on_change = view.changed
        stage = Stage(cluster, world, read_prompts(TINY_PAIR / "prompts.jsonl"), view.say, device)
        with view.live(world.objects):
            for number, (name, act) in enumerate(acts, start=1):
                view.title(f"Act {number}: {name}", act.__doc__ or "")
                results.append(await _judged(name, act, stage, view))
                if not results[-1].finished and number < len(ACTS):
                    break  # the next of the four acts stands on the end of this one; faults do not
    return results


async def _judged(name: str, act: Act, stage: Stage, view: View) -> Result:
    start = time.monotonic()
    try:
        ending = await act(stage)
    except (ActFailed, ClusterError, OSError, RuntimeError) as error:
        ending = Ending([Check("the act came to its end", False, str(error))], finished=False)
    view.checks(ending.checks)
    if ending.figures:
        view.say(told(ending.figures))
    failed = tuple(f"{check.told}: {check.found}" for check in ending.checks if not check.holds)
    return Result(name, not failed, ending.finished, round(time.monotonic() - start, 1), ending.figures, failed)


def _summary(results: list[Result]) -> Table:
    table = Table("act", "", "seconds", "figures", box=box.SIMPLE_HEAD)
    for number, result in enumerate(results, start=1):
        mark = "[green]passed[/]" if result.passed else "[red]FAILED[/]"
        table.add_row(f"{number} {result.name}", mark, f"{result.seconds:.0f}", told(result.figures))
    return table


def _kubectl(cluster: Cluster) -> str:
    return f"  export KUBECONFIG={cluster.kubeconfig} PATH={cluster.layout.binaries}:$PATH"


def _next_commands(cluster: Cluster) -> str:
    url = cluster.service_url("default", GOOD, 80)
    body = json.dumps({"model": GOOD, "prompt": "Q: Which colour is the", "max_tokens": 48, "temperature": 0})
    return (
        f"Left running. Type next:\n\n{_kubectl(cluster)}\n  kubectl get specdep -w\n"
        f"  kubectl describe specdep {GOOD}\n"
        f"  curl {url}/v1/completions -H 'Content-Type: application/json' -d '{body}'\n  make demo-down"
    )


if __name__ == "__main__":
    try:
        app()
    except (ToolError, ClusterError) as error:
        sys.exit(f"error: {error}")
