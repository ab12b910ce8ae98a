"""How each engine is run and read: one module an engine, one interface (`adapter.Adapter`)."""

from __future__ import annotations

from tandem_operator.api.spec import Engine, EngineType, Speculation
from tandem_operator.engines.adapter import Adapter, Launch
from tandem_operator.engines.builtin import Builtin
from tandem_operator.engines.sglang import SGLang
from tandem_operator.engines.vllm import Vllm

__all__ = ["Adapter", "Launch", "adapter_of"]


def adapter_of(engine: Engine, speculation: Speculation) -> Adapter:
    if engine.type == EngineType.BUILTIN:
        return Builtin()
    kind = SGLang if engine.type == EngineType.SGLANG else Vllm
    return kind(engine.version or "", speculation.fixed_draft_length)
