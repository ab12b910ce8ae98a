"""From the architecture's name in config.json to the module that computes it."""

from __future__ import annotations

from collections.abc import Mapping

from tandem_worker.models.llama import Llama

FAMILIES: Mapping[str, type[Llama]] = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Llama,
}
