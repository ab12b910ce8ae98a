"""What `analysis.py` found: the bars it is held to, as a table, and as a picture."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from tandem_operator.plan.analysis.sequential import ALARM_ABOVE


@dataclass(frozen=True)
class Cell:
    """One experiment. Delays are drafts of the revision that is judged, as multiples of the bound or, where that is
    more, of the drafts that pass until the minimum of evidence which the spec asks for is there."""

    experiment: str
    drafts_per_request: int
    correlation: float
    design_effect: float
    bound_drafts: float
    minimum_drafts: float
    runs: int
    verdicts: int
    false_verdicts: int
    mean_delay: float | None = None
    p95_delay: float | None = None


@dataclass(frozen=True)
class Month:
    """False alarms of the CUSUM over a month of looks at a revision that stays where it is."""

    drafts_per_request: int
    correlation: float
    rate: float
    drafts_per_look: int
    months: float  # simulated
    alarms: int
    alarms_per_month: float  # extrapolated from how often lower scores are crossed, where none was seen


@dataclass(frozen=True)
class Bar:
    says: str
    found: str
    holds: bool


def bars(found: list[Cell], silent: dict[str, int]) -> list[Bar]:
    steady_cells = [c for c in found if c.experiment.startswith("steady")]
    collapsed = [c for c in found if c.experiment.startswith("canary at 0.50")]
    healthy = [c for c in found if c not in steady_cells and c not in collapsed]
    runs, false = sum(c.runs for c in healthy), sum(c.false_verdicts for c in healthy)
    most = false + 1.645 * math.sqrt(false) + 2.7  # 95 %; 3 / n for none (the rule of three)
    missed = sum(c.runs - c.verdicts for c in collapsed) + sum(
        c.runs - c.verdicts - c.false_verdicts for c in steady_cells
    )
    slowest = max(c.mean_delay or math.inf for c in steady_cells + collapsed)
    return [
        Bar("0.75 -> 0.50 is detected within 1.5 times the bound, on average, in every cell",
            f"at most {slowest:.2f} times; {missed} not detected", slowest <= 1.5 and missed == 0),
        Bar("false rollbacks of healthy canaries < 0.001 per rollout",
            f"{false} of {runs}: below {most / runs:.5f} with 95 % confidence", most / runs < 1e-3),
        Bar("without evidence there is never a verdict", f"{sum(silent.values())} verdicts", not any(silent.values())),
    ]  # fmt: skip


def table(rows: list[dict[str, object]]) -> str:
    head = list(rows[0])
    lines = [[str(name).replace("_", " ") for name in head], ["---"] * len(head)]
    lines += [["-" if row[name] is None else f"{row[name]}" for name in head] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown(found: list[Cell], monthly: list[Month], silent: dict[str, int], seed: int, scale: float) -> str:
    judged = "\n".join(f"- {'holds' if bar.holds else 'FAILS'}: {bar.says}: {bar.found}" for bar in bars(found, silent))
    by_experiment: dict[str, list[dict[str, object]]] = {}
    for cell in found:
        row = asdict(cell)
        by_experiment.setdefault(row.pop("experiment"), []).append(row)
    parts = "\n\n".join(f"## {name[0].upper()}{name[1:]}\n\n{table(rows)}" for name, rows in by_experiment.items())
    return f"""# Acceptance analysis: delay and false alarms

Written by `make bench-analysis` (seed {seed}, scale {scale:g}); what is simulated is told at the head of
`benchmarks/analysis.py`. Delays are multiples of `bound drafts`, or of `minimum drafts` where that is more.

{judged}

![delay over the bound](analysis.svg)

{parts}

## False alarms of the CUSUM in a month of looks, one every 30 seconds

At the baseline and at the very edge of healthy, for good. Where no alarm was seen, the figure is extrapolated from how
often lower scores were crossed; 0.0: hardly any score of 3 was, and the alarm is at {ALARM_ABOVE:g}.

{table([asdict(m) for m in monthly])}
"""


def plot(found: list[Cell], file: Path) -> None:
    """Mean and 95th percentile of the delay over the design effect."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tandem"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    for n, experiment in enumerate(("steady: 0.75 falls to 0.50", "canary at 0.50 beside 0.83")):
        shown = sorted((c for c in found if c.experiment == experiment), key=lambda c: c.design_effect)
        x = [c.design_effect for c in shown]
        axes.plot(x, [c.mean_delay or 0.0 for c in shown], "o", color=f"C{n}", label=f"{experiment}, mean")
        axes.plot(x, [c.p95_delay or 0.0 for c in shown], "_", color=f"C{n}", label="95th percentile")
    axes.axhline(1, color="0.5", linewidth=1)
    axes.axhline(1.5, color="0.5", linewidth=1, linestyle="--")
    axes.set(xscale="log", ylim=(0, None), xlabel="design effect", ylabel="delay / bound")
    axes.legend(fontsize=8, ncols=2, frameon=False)
    figure.savefig(file, metadata={"Date": None})
