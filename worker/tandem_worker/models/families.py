"""From a family's name, which `checkpoint.describe` reads from the architecture, to the module that computes it."""

from __future__ import annotations

from collections.abc import Mapping

from tandem_worker.models.deepseek_v3 import DeepseekV3
from tandem_worker.models.gpt_oss import GptOssModel
from tandem_worker.models.llama import Llama
from tandem_worker.models.qwen2 import Qwen2
from tandem_worker.models.qwen3 import Qwen3
from tandem_worker.models.qwen3_moe import Qwen3Moe

FAMILIES: Mapping[str, type[Llama]] = {
    "llama": Llama,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
    "qwen3_moe": Qwen3Moe,
    "deepseek_v3": DeepseekV3,
    "gpt_oss": GptOssModel,
}
