"""Qwen2: Llama with biases of queries, keys and values."""

from __future__ import annotations

from tandem_worker.models.llama import Llama


class Qwen2(Llama):
    """The biases are a setting that its description always has (`checkpoint.describe`)."""
