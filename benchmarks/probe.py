"""The streamed forward at real sizes: time against the disk's own speed, memory against one layer.

    PYTHONPATH=worker:hack python benchmarks/probe.py --out benchmarks/results/probe.json --shape llama-8b --shape kimi

Writes checkpoints of random weights (bf16 at the shapes of Llama-3.1-8B and Llama-3.2-1B; four layers of Kimi-K2.5's
text model with INT4 experts, also half as wide with a quarter of them) to --folder, which must be on the disk that is
to be measured, and removes them. With --write-only it does no more than write them: a later run takes them and leaves
them there. Each is streamed twice: with its files dropped from the page cache (cold), and with all of them in it (warm;
not with --cold). Beside it stands what the disk gives to plain threads that read the same bytes into a buffer and do
nothing else; of several numbers of threads the fastest.

Activations are what one layer's forward needs beside its weights, measured with that layer alone. Then the target's
head is applied, which belongs to its pass, and a random drafter is measured on the states under every wiring that the
probe tries for such a pair. All that is timed ends with its result in host memory, so nothing is still under way on a
GPU. With --count floating-point operations (of products and attention, counted by torch) stand beside seconds: they do
not depend on the machine and on what else it does. Counting takes time, so seconds mean little then, on a GPU nothing.

Results are written after each part, so that a run that is cut off leaves what it had measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from probe_checkpoints import SCALE, SHAPES, TOY, Shape, write, write_drafter
from probe_disk import READERS, cached_share, disk_speed, drop_from_cache, read_plainly
from provenance import provenance
from tandem_worker.checkpoint import Target, open_checkpoint, read_target
from tandem_worker.checks.judge import open_pairing
from tandem_worker.engines import load
from tandem_worker.models.families import FAMILIES
from tandem_worker.models.moe import Experts
from tandem_worker.probe.build import load_parts
from tandem_worker.probe.captured import Captured, captured
from tandem_worker.probe.described import describe_drafter
from tandem_worker.probe.resolved import choices_of, engine_wiring, tensors_of
from tandem_worker.probe.run import Options
from tandem_worker.probe.run import measure as measure_wirings
from tandem_worker.probe.stream import Progress, SequencesAttention, stream
from tandem_worker.probe.streamed import Streamed

BEGAN = time.monotonic()
ROW_TOKENS = 128  # about as long as the texts that ship are


# --- memory ----------------------------------------------------------------------------------------------------------


class OneForAll:
    """An opener of experts."""

    def __init__(self, expert: nn.Module) -> None:
        self.expert = expert

    def announce(self, experts: Collection[int]) -> None:
        pass

    def open(self, expert: int) -> Callable[[Tensor], Tensor]:
        return self.expert


def peak(device: torch.device) -> int:
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(device)


def host_memory(field: str) -> int:
    """Of this process; VmHWM is the peak since `forget_peak`."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def forget_peak() -> int | None:
    """What is resident now; None where no peak is kept, or none can be forgotten."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return host_memory("VmRSS")


def layer_memory(folder: Path, tokens: int, device: torch.device) -> dict[str, int]:
    """Of the layer that needs most (a first one may have no experts): its weights as the arithmetic holds them, of
    experts one, and what its forward needs beside them.
    """
    target = read_target(open_checkpoint(folder))
    found = [_memory_of(target, index, tokens, device) for index in {0, target.layers - 1}]
    return max(found, key=lambda one: sum(one.values()))


def _memory_of(target: Target, index: int, tokens: int, device: torch.device) -> dict[str, int]:
    with torch.device("meta"):
        layer = FAMILIES[target.family].decoder_layer(target, index)
    if isinstance(experts := getattr(layer, "mlp", None), Experts):
        experts.experts = nn.ModuleList([experts.experts[0]])
        experts.opener = OneForAll(experts.experts[0])
    layer.bfloat16().to_empty(device=device).requires_grad_(False)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=SCALE)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in layer.parameters())
    lengths = [ROW_TOKENS] * (tokens // ROW_TOKENS)
    x = torch.randn(1, tokens, target.hidden_size, dtype=torch.bfloat16, device=device)
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])[None]
    rotary = FAMILIES[target.family].rotary(target)(positions, x.dtype)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with torch.inference_mode():
        layer(0, x, rotary, SequencesAttention(lengths))
    return {"layer_bytes": weights, "activation_bytes": peak(device) - before + x.numel() * x.element_size()}


# --- runs ------------------------------------------------------------------------------------------------------------


Result = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    tokens: int
    device: torch.device
    cold_only: bool
    pass_only: bool
    count: bool
    keep: Callable[[], None]  # writes what is known so far

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


def measure(name: str, shape: Shape, folder: Path, asked: Asked, result: Result) -> None:
    """Fills in `result`."""
    sizes = {file.name: file.stat().st_size for file in folder.glob("*.safetensors")}
    layers = shape.config["num_hidden_layers"]
    result |= {"bytes_on_disk": sum(sizes.values()), "tokens": asked.tokens, "layers": layers}
    result["largest_layer_stored_gb"] = round(max(sizes[f"model-{i:03d}.safetensors"] for i in range(layers)) / 1e9, 3)
    for cache in ("cold",) if asked.cold_only else ("cold", "warm"):
        say(f"{name}: {cache}")
        timed: Result = {}
        result[cache] = timed
        time_pass(folder, shape, asked, cache == "cold", timed)
        if asked.on_gpu:
            if cache == "cold":  # not before it: a fresh process finds no kernels loaded either
                result |= layer_memory(folder, asked.tokens, asked.device)
            beside = timed["peak_gpu_bytes"] - result["activation_bytes"]
            timed["peak_in_layers_beside_activations"] = round(beside / result["layer_bytes"], 2)
        say(f"{name}: {cache}: {timed}")
        asked.keep()


def time_pass(folder: Path, shape: Shape, asked: Asked, cold: bool, result: Result) -> None:
    """Of the target, with what it takes, and of the wirings behind it."""
    if not cold:
        read_plainly(folder, READERS[-1])
    bytes_per_second, threads = disk_speed(folder, cold)
    if cold:
        drop_from_cache(folder)
    result |= {"disk_gb_per_second": round(bytes_per_second / 1e9, 2), "disk_threads": threads}
    result["share_in_page_cache_before"] = cached_share(folder)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(shape.config["vocab_size"], (asked.tokens,), generator=generator)
    told: list[Progress] = []
    if asked.on_gpu:
        torch.cuda.reset_peak_memory_stats(asked.device)
    layers, before = shape.config["num_hidden_layers"], forget_peak()
    began = time.monotonic()
    with counting(asked) as counted:
        streamed = stream(folder, ids.split(ROW_TOKENS), range(layers + 1), asked.device, told.append)
    seconds, weights = time.monotonic() - began, told[-1].bytes_total
    result |= {
        "seconds": round(seconds, 2),
        "weight_gb": round(weights / 1e9, 2),
        "share_of_disk_speed": round(weights / bytes_per_second / seconds, 3),
    }
    if before is not None:
        result["peak_host_gb"] = round((host_memory("VmHWM") - before) / 1e9, 3)  # beside what was resident before
    if asked.on_gpu:
        result["peak_gpu_bytes"] = peak(asked.device)
    asked.keep()
    if not asked.pass_only:
        time_wirings(folder, streamed, asked, seconds, counted(), result)


def time_wirings(
    folder: Path, streamed: Streamed, asked: Asked, pass_seconds: float, pass_flops: int, result: Result
) -> None:
    if asked.on_gpu:
        torch.cuda.reset_peak_memory_stats(asked.device)
    began = time.monotonic()
    with counting(asked) as of_head:
        seen = captured(streamed, [0] * (len(streamed.starts) - 1))
    head = time.monotonic() - began
    began = time.monotonic()
    with counting(asked) as of_wirings:
        wirings, loaded = try_wirings(folder, streamed, seen)
    seconds = time.monotonic() - began
    result |= {
        "head_seconds": round(head, 2),
        "wirings": wirings,
        "hypotheses_seconds": round(seconds, 2),
        "of_these_to_load_the_drafter": round(loaded - began, 2),
        "hypotheses_share_of_pass": round(seconds / (pass_seconds + head), 3),
    }
    if asked.on_gpu:
        result["peak_gpu_bytes_of_hypotheses"] = peak(asked.device)
    if asked.count:
        flops = [pass_flops, of_head(), of_wirings()]
        result["tflop_of_layers_head_and_hypotheses"] = [round(count / 1e12, 3) for count in flops]
        result["hypotheses_share_of_pass_by_operations"] = round(flops[2] / (flops[0] + flops[1]), 3)


@contextmanager
def counting(asked: Asked) -> Iterator[Callable[[], int]]:
    """Floating-point operations within."""
    if not asked.count:
        yield lambda: 0
        return
    with FlopCounterMode(display=False) as counter:
        yield counter.get_total_flops


def try_wirings(folder: Path, streamed: Streamed, seen: Captured) -> tuple[int, float]:
    """As the probe does behind its pass; how many were measured, and when the drafter was there."""
    pairing = open_pairing(folder, folder / "drafter", load("builtin"))
    wiring = engine_wiring(pairing)
    offered = choices_of(pairing, wiring)
    drafter = describe_drafter(pairing, streamed.target, offered.states)
    parts = load_parts(drafter, tensors_of(pairing), streamed)
    loaded = time.monotonic()
    probed = measure_wirings(pairing, Options(4, 1.3), seen, parts, wiring, offered)
    return len(probed.table.looked), loaded


def machine(device: torch.device) -> Result:
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 1),  # of other work
    }


def shrunk(shape: Shape, layers: int | None, toy: bool) -> Shape:
    config = dict(shape.config)
    if toy:
        config |= {name: value for name, value in TOY.items() if name in config}
    return Shape(config | ({"num_hidden_layers": layers} if layers else {}), shape.packed)


def named(name: str, arguments: argparse.Namespace) -> str:
    """Of a shape's checkpoints; another one for each size."""
    return f"probe-{name}" + "-toy" * arguments.toy + (f"-{arguments.layers}-layers" if arguments.layers else "")


def written(folder: Path, shape: Shape) -> bool:
    """Whether they had to be written. A folder has its name as soon as it is whole."""
    if folder.exists():
        return False
    say(f"writing {folder.name}")
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "drafter").mkdir(parents=True)
    write_drafter(shape, partial / "drafter")
    write(shape, partial)
    partial.rename(folder)
    return True


def told(arguments: argparse.Namespace) -> list[str]:
    """The command, without places on this machine."""
    shapes = [part for name in arguments.shape or [] for part in ("--shape", name)]
    sizes = [
        f"--{name}={getattr(arguments, name)}" for name in ("layers", "tokens", "device") if getattr(arguments, name)
    ]
    return (
        shapes
        + sizes
        + [f"--{name}" for name in ("cold", "pass-only", "count", "toy") if vars(arguments)[name.replace("-", "_")]]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=list(SHAPES))
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to be measured")
    parser.add_argument("--write-only", action="store_true", help="leave the checkpoints in --folder for a later run")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pass-only", action="store_true", help="leave out the wirings")
    parser.add_argument("--count", action="store_true", help="count floating-point operations, which takes its time")
    parser.add_argument("--cold", action="store_true", help="leave out the run from the page cache")
    parser.add_argument("--toy", action="store_true", help="a thousandth of the size, to try the script")
    parser.add_argument("--commit", default="", help="of this checkout, where git can not tell it")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    versions = provenance("torch", "safetensors", commit=arguments.commit)
    results: Result = {"command": " ".join(["probe.py", *told(arguments)]), **versions, "machine": machine(device)}

    def keep() -> None:
        if arguments.out:
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")

    asked = Asked(arguments.tokens, device, arguments.cold, arguments.pass_only, arguments.count, keep)
    for name in arguments.shape or ["llama-8b", "kimi"]:
        shape = shrunk(SHAPES[name], arguments.layers, arguments.toy)
        folder = arguments.folder / named(name, arguments)
        new = written(folder, shape)
        if arguments.write_only:
            continue
        results[name] = {}
        try:
            measure(name, shape, folder, asked, results[name])
        finally:
            if new:
                shutil.rmtree(folder)
        print(json.dumps(results[name], indent=1), flush=True)


if __name__ == "__main__":
    main()
