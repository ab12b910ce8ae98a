"""Static verdicts on rebuilt public pairs; a package, because a benchmark has the same name."""
