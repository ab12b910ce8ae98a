"""The worker: proves that a drafter fits its target, and serves the pair."""

__version__ = "0.1.0"
