"""`python -m localcluster`: a local Kubernetes to try things on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from localcluster.build import binaries
from localcluster.cluster import DEFAULT_NAME, Cluster, ClusterError
from localcluster.gpus import machine_gpus
from tools.once import ToolError

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Name = Annotated[str, typer.Option(help="Clusters of different names run side by side.")]
Directory = Annotated[Path | None, typer.Option("--dir", help="Folder for the clusters' folders; default: the cache.")]


@app.command()
def up(
    name: Name = DEFAULT_NAME,
    directory: Directory = None,
    gpus: Annotated[int, typer.Option(help="nvidia.com/gpu that the node claims to have.")] = 16,
    gpu_shares: Annotated[
        int, typer.Option(min=0, help="Offer this machine's own GPUs instead, each to so many containers at a time.")
    ] = 0,
) -> None:
    """Start the cluster, or find it running, and say how to use it."""
    offered = machine_gpus() if gpu_shares else gpus
    cluster = Cluster.start(name, directory, gpus=offered, gpu_shares=gpu_shares or 1, outlives_caller=True)
    print(f"cluster {name} is up\n\n  export KUBECONFIG={cluster.kubeconfig}")
    print(f"  {cluster.layout.binaries / 'kubectl'} get nodes")


@app.command()
def down(name: Name = DEFAULT_NAME, directory: Directory = None) -> None:
    """End the cluster and remove everything it wrote."""
    Cluster(name, directory).stop()


@app.command()
def status(name: Name = DEFAULT_NAME, directory: Directory = None) -> None:
    """What runs, and where each Service is served on this machine."""
    cluster = Cluster(name, directory)
    if not cluster.running():
        print(cluster.failure() or f"cluster {name} is down")
        raise typer.Exit(1)
    print(f"cluster {name} is up\nkubeconfig  {cluster.kubeconfig}\nlogs        {cluster.logs_dir}\n")
    print(cluster.kubectl("get", "nodes,pods", "--all-namespaces", "--output=wide"))
    table = Table("in the cluster", "on this machine", box=None, padding=(0, 2, 0, 0))
    for service in cluster.services():
        table.add_row(service.dns_url, service.url)
    Console().print(table)


@app.command()
def kubeconfig(name: Name = DEFAULT_NAME, directory: Directory = None) -> None:
    """Print the path of the administrator's kubeconfig."""
    print(_up(name, directory).kubeconfig)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def kubectl(context: typer.Context, name: Name = DEFAULT_NAME, directory: Directory = None) -> None:
    """Run the cluster's own kubectl: `kubectl -- get pods`."""
    cluster = _up(name, directory)
    program = str(cluster.layout.binaries / "kubectl")
    os.execv(program, [program, f"--kubeconfig={cluster.kubeconfig}", *context.args])


@app.command("build")
def build_() -> None:
    """Find the Kubernetes binaries, or build them, and print where they are."""
    print(*sorted({str(path) for path in binaries().values()}), sep="\n")


def _up(name: str, directory: Path | None) -> Cluster:
    cluster = Cluster(name, directory)
    if not cluster.running():
        raise ClusterError(f"cluster {name} is down; start it with `python -m localcluster up --name {name}`")
    return cluster


if __name__ == "__main__":
    try:
        app()
    except (ToolError, ClusterError) as error:
        sys.exit(f"error: {error}")
