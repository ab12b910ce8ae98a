"""What each engine does with a pair, by version: data that was read in its published source, one file per engine."""

from tandem_worker.engines.table import ENGINES, NEUTRAL, Answer, Engine, UnknownEngine, all_engines, load

__all__ = ["ENGINES", "NEUTRAL", "Answer", "Engine", "UnknownEngine", "all_engines", "load"]
