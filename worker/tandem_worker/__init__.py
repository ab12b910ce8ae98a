"""The worker: proves that a drafter fits its target, and serves the pair."""
