"""A pair of any size with random weights, made on the device: for benchmarks and for tests of arithmetic. Its times are
real; its text is not, and its drafter knows nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tandem_worker.checkpoint.description import Drafter, Target
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.families import FAMILIES
from tandem_worker.models.layers import Linear
from tandem_worker.models.llama import Llama
from tandem_worker.models.quantised import Kept

SCALE = 0.02


def llama_8b(layers: int = 32) -> tuple[Target, Drafter]:
    """Llama-3.1-8B and yuhuili/EAGLE3-LLaMA3.1-Instruct-8B."""
    target = Target(
        architecture="LlamaForCausalLM",
        hidden_size=4096,
        intermediate_size=14336,
        layers=layers,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab_size=128256,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        max_position_embeddings=131072,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_ids=(),
        dtype="bfloat16",
    )
    drafter = Drafter(
        architecture="LlamaForCausalLMEagle3",
        hidden_size=4096,
        intermediate_size=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab_size=128256,
        draft_vocab_size=32000,
        target_hidden_size=4096,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        max_position_embeddings=2048,
        norm_before_residual=False,
        dtype="bfloat16",
        declared_at="default",
        capture_indexes=(min(2, layers), layers // 2, max(0, layers - 3)),
    )
    return target, drafter


def random_pair(target: Target, drafter: Drafter, device: torch.device, dtype: torch.dtype) -> tuple[Llama, Eagle3]:
    """The drafter borrows the target's embedding."""
    with torch.device("meta"):
        llama, eagle3 = FAMILIES[target.family](target), Eagle3(drafter)
    eagle3.embed_tokens = llama.model.embed_tokens
    for module in (llama, eagle3):
        module.to(dtype).to_empty(device=device).requires_grad_(False)
        for name, parameter in module.named_parameters():
            if "norm" in name:
                nn.init.uniform_(parameter, 0.5, 1.5)
            else:
                nn.init.uniform_(parameter, -SCALE, SCALE)
    nn.init.normal_(llama.model.embed_tokens.weight)
    eagle3.embed_tokens = llama.model.embed_tokens
    step = drafter.vocab_size // drafter.draft_vocab_size
    eagle3.d2t = torch.arange(drafter.draft_vocab_size, device=device) * (step - 1)
    return llama.eval(), eagle3.eval()


def rounded(weight: Tensor, columns: int | None = None, dtype: torch.dtype = torch.float8_e4m3fn) -> Kept:
    """Scales by output, and by block of so many columns."""
    blocks = weight.float().unflatten(1, (-1, columns or weight.shape[1]))
    largest = 127 if dtype is torch.int8 else 448
    scale = blocks.abs().amax(-1) / largest
    values = (blocks / scale[..., None]).flatten(1).clamp(-largest, largest)
    return Kept((values.round() if dtype is torch.int8 else values).to(dtype), scale.T.contiguous())


def round_layers(llama: Llama, columns: int | None = None) -> None:
    """To FP8, which stays so."""
    for module in llama.model.layers.modules():
        if isinstance(module, Linear):
            module.keep(rounded(module.weight, columns))
