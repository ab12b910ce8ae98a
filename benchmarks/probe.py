"""The streamed forward at real sizes: time against the disk's own speed, memory against one layer.

    python benchmarks/probe.py --out benchmarks/results/probe.json [--shape llama-8b] [--shape kimi] [--layers N]

Writes checkpoints of random weights (bf16 at the shapes of Llama-3.1-8B and Llama-3.2-1B; four layers of Kimi-K2.5's
text model with INT4 experts, also half as wide with a quarter of them) to --folder, which must be on the disk that is
to be measured, and removes them. Each is streamed twice: with its files dropped from the page cache (cold), and with
all of them in it (warm; not with --cold). Beside it stands what the disk gives to plain threads that read the same
bytes into a buffer and do nothing else; of several numbers of threads the fastest.

Activations are what one layer's forward needs beside its weights, measured with that layer alone. Then the target's
head is applied, which belongs to its pass, and a random drafter is measured on the states under every wiring that the
probe tries for such a pair. Beside seconds stand floating-point operations (of products and attention, counted by
torch), which do not depend on the machine and on what else it does.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from probe_checkpoints import SCALE, SHAPES, TOY, Shape, write, write_drafter
from tandem_worker.checkpoint import open_checkpoint, read_target
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

CHUNK_BYTES = 16 * 2**20
READERS = (4, 16)
ROW_TOKENS = 128  # about as long as the texts that ship are


# --- the disk --------------------------------------------------------------------------------------------------------


def drop_from_cache(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_plainly(folder: Path, threads: int) -> float:
    """Bytes per second of reading all shards."""
    chunks = [
        (file, start)
        for file in sorted(folder.glob("*.safetensors"))
        for start in range(0, file.stat().st_size, CHUNK_BYTES)
    ]
    buffers = [bytearray(CHUNK_BYTES) for _ in range(threads)]

    def read(worker: int) -> int:
        done = 0
        for file, start in chunks[worker::threads]:
            with file.open("rb", buffering=0) as opened:
                done += os.preadv(opened.fileno(), [buffers[worker]], start)
        return done

    began = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(read, range(threads)))
    return done / (time.monotonic() - began)


def disk_speed(folder: Path, cold: bool) -> tuple[float, int]:
    """(bytes per second, threads) of the fastest."""
    speeds = {}
    for threads in READERS:
        if cold:
            drop_from_cache(folder)
        speeds[threads] = read_plainly(folder, threads)
    threads = max(speeds, key=lambda count: speeds[count])
    return speeds[threads], threads


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


def forget_peak() -> int:
    """What is resident now."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return host_memory("VmRSS")


def layer_memory(folder: Path, tokens: int, device: torch.device) -> dict[str, int]:
    """Weights of the largest layer as the arithmetic holds them (of experts, one), and what its forward needs beside
    them.
    """
    target = read_target(open_checkpoint(folder))
    with torch.device("meta"):
        layer = FAMILIES[target.family].decoder_layer(target, target.layers - 1)
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


class Asked(NamedTuple):
    tokens: int
    device: torch.device
    cold_only: bool
    pass_only: bool


def measure(name: str, shape: Shape, folder: Path, asked: Asked) -> dict[str, Any]:
    print(f"{name}: writing", flush=True)
    (folder / "drafter").mkdir()
    write_drafter(shape, folder / "drafter")
    write(shape, folder)
    sizes = {file.name: file.stat().st_size for file in folder.glob("*.safetensors")}
    layers = shape.config["num_hidden_layers"]
    result: dict[str, Any] = {"bytes_on_disk": sum(sizes.values()), "tokens": asked.tokens, "layers": layers}
    result["largest_layer_stored_gb"] = round(max(sizes[f"model-{i:03d}.safetensors"] for i in range(layers)) / 1e9, 3)
    for cold in (True,) if asked.cold_only else (True, False):
        timed = time_pass(folder, shape, asked, cold)
        print(f"  {'cold' if cold else 'warm'}: {timed}", flush=True)
        result["cold" if cold else "warm"] = timed
    if asked.device.type == "cuda":
        result |= layer_memory(folder, asked.tokens, asked.device)
        result["peak_in_layers_beside_activations"] = round(
            (result["cold"]["peak_gpu_bytes"] - result["activation_bytes"]) / result["layer_bytes"], 2
        )
    return result


def time_pass(folder: Path, shape: Shape, asked: Asked, cold: bool) -> dict[str, Any]:
    """Of the target, with what it takes, and of the wirings behind it."""
    if not cold:
        read_plainly(folder, READERS[-1])
    bytes_per_second, threads = disk_speed(folder, cold)
    if cold:
        drop_from_cache(folder)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(shape.config["vocab_size"], (asked.tokens,), generator=generator)
    told: list[Progress] = []
    on_gpu = asked.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(asked.device)
    layers, before = shape.config["num_hidden_layers"], forget_peak()
    began = time.monotonic()
    with FlopCounterMode(display=False) as counted:
        streamed = stream(folder, ids.split(ROW_TOKENS), range(layers + 1), asked.device, told.append)
    if on_gpu:
        torch.cuda.synchronize()
    seconds, weights = time.monotonic() - began, told[-1].bytes_total
    result: dict[str, Any] = {
        "disk_gb_per_second": round(bytes_per_second / 1e9, 2),
        "disk_threads": threads,
        "seconds": round(seconds, 2),
        "weight_gb": round(weights / 1e9, 2),
        "share_of_disk_speed": round(weights / bytes_per_second / seconds, 3),
        "peak_host_gb": round((host_memory("VmHWM") - before) / 1e9, 3),  # beside what was resident before
    }
    if on_gpu:
        result["peak_gpu_bytes"] = peak(asked.device)
    return result if asked.pass_only else result | time_wirings(folder, streamed, seconds, counted.get_total_flops())


def time_wirings(folder: Path, streamed: Streamed, pass_seconds: float, pass_flops: int) -> dict[str, Any]:
    began = time.monotonic()
    with FlopCounterMode(display=False) as of_head:
        seen = captured(streamed, [0] * (len(streamed.starts) - 1))
    head = time.monotonic() - began
    began = time.monotonic()
    with FlopCounterMode(display=False) as of_wirings:
        wirings = try_wirings(folder, streamed, seen)
    seconds = time.monotonic() - began
    flops = [pass_flops, of_head.get_total_flops(), of_wirings.get_total_flops()]
    return {
        "head_seconds": round(head, 2),
        "wirings": wirings,
        "hypotheses_seconds": round(seconds, 2),
        "hypotheses_share_of_pass": round(seconds / (pass_seconds + head), 3),
        "tflop_of_layers_head_and_hypotheses": [round(count / 1e12, 3) for count in flops],
        "hypotheses_share_of_pass_by_operations": round(flops[2] / (flops[0] + flops[1]), 3),
    }


def try_wirings(folder: Path, streamed: Streamed, seen: Captured) -> int:
    """As the probe does behind its pass; how many were measured."""
    pairing = open_pairing(folder, folder / "drafter", load("builtin"))
    wiring = engine_wiring(pairing)
    offered = choices_of(pairing, wiring)
    drafter = describe_drafter(pairing, streamed.target, offered.states)
    parts = load_parts(drafter, tensors_of(pairing), streamed)
    probed = measure_wirings(pairing, Options(4, 1.3), seen, parts, wiring, offered)
    return len(probed.table.looked)


def machine(device: torch.device) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 1),  # of other work
    }


def shrunk(shape: Shape, layers: int | None, toy: bool) -> Shape:
    config = dict(shape.config)
    if toy:
        config |= {name: value for name, value in TOY.items() if name in config}
    return Shape(config | ({"num_hidden_layers": layers} if layers else {}), shape.packed)


@contextmanager
def temporary(where: Path | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=where, prefix="probe-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def told(arguments: argparse.Namespace) -> list[str]:
    """The command, without places on this machine."""
    shapes = [part for name in arguments.shape or [] for part in ("--shape", name)]
    sizes = [
        f"--{name}={getattr(arguments, name)}" for name in ("layers", "tokens", "device") if getattr(arguments, name)
    ]
    return (
        shapes
        + sizes
        + [f"--{name}" for name in ("cold", "pass-only", "toy") if vars(arguments)[name.replace("-", "_")]]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=list(SHAPES))
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--folder", type=Path, help="on the disk that is to be measured")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pass-only", action="store_true", help="leave out the wirings")
    parser.add_argument("--cold", action="store_true", help="leave out the run from the page cache")
    parser.add_argument("--toy", action="store_true", help="a thousandth of the size, to try the script")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    results: dict[str, Any] = {"command": " ".join(["probe.py", *told(arguments)]), "machine": machine(device)}
    asked = Asked(arguments.tokens, device, arguments.cold, arguments.pass_only)
    for name in arguments.shape or ["llama-8b", "kimi"]:
        with temporary(arguments.folder) as folder:
            shape = shrunk(SHAPES[name], arguments.layers, arguments.toy)
            results[name] = measure(name, shape, folder, asked)
    text = json.dumps(results, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
