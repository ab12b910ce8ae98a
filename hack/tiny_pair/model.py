"""Target (Llama) and EAGLE-3 drafter as plain modules. Parameter names are the tensor names of the checkpoints.

The serving worker has models of its own; these have what training needs and serving does not: draft steps from every
position at once. Shapes: B sequences, T positions, H hidden size, V target vocabulary, Vd draft vocabulary, D head
size, n decoder layers.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from tiny_pair.config import DrafterConfig, LlamaConfig, TargetConfig

KeysValues = tuple[Tensor, Tensor]  # [B, heads, T, D] each


class RMSNorm(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self.eps = config.rms_norm_eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding with split halves, as in Llama. x [B, heads, T, D], positions [T]."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = positions[:, None] * frequency  # [T, D/2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig, width: int) -> None:
        super().__init__()
        heads, kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.group, self.theta = heads // kv_heads, config.rope_theta
        self.q_proj = nn.Linear(width, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, config.hidden_size, bias=False)

    def qkv(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, width] -> q, k, v [B, heads, T, D]; keys and values repeated for the query heads they serve."""
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, positions, self.theta), rotate(k, positions, self.theta)
        return q, k.repeat_interleave(self.group, 1), v.repeat_interleave(self.group, 1)

    def out(self, y: Tensor) -> Tensor:
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class TargetLayer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config, config.hidden_size)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config)
        self.post_attention_layernorm = RMSNorm(config)

    def forward(self, x: Tensor, positions: Tensor, cache: KeysValues | None = None) -> Tensor:
        """x [B, T, H] at `positions` [T]: all from 0 on, or one whose past is in the cache, which is filled."""
        q, k, v = self.self_attn.qkv(self.input_layernorm(x), positions)
        if cache:
            first, end = int(positions[0]), int(positions[-1]) + 1
            for buffer, new in zip(cache, (k, v), strict=True):
                buffer[:, :, first:end] = new
            k, v = cache[0][:, :, :end], cache[1][:, :, :end]
        x = x + self.self_attn.out(F.scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1))
        return x + self.mlp(self.post_attention_layernorm(x))


class TargetBody(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(TargetLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config)


class Target(nn.Module):
    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        self.model = TargetBody(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """tokens [B, T] -> logits [B, T, V] and n + 1 residual streams [B, T, H]; streams[i] enters layer i.

        streams[0] is the embedding, streams[n] leaves the last layer and has not passed the final norm.
        """
        positions = torch.arange(tokens.shape[1])
        streams = [self.model.embed_tokens(tokens)]
        for layer in self.model.layers:
            streams.append(layer(streams[-1], positions))
        return self.lm_head(self.model.norm(streams[-1])), streams

    def greedy(self, tokens: Tensor, new_tokens: int) -> Tensor:
        """tokens [B, T], T the same for all rows -> [B, T + new_tokens]."""
        rows, known = tokens.shape
        heads, head_dim = self.config.num_attention_heads, self.config.head_dim
        caches = torch.empty(len(self.model.layers), 2, rows, heads, known + new_tokens, head_dim)
        for end in range(known, known + new_tokens):
            start = 0 if end == known else end - 1
            x, positions = self.model.embed_tokens(tokens[:, start:]), torch.arange(start, end)
            for layer, (keys, values) in zip(self.model.layers, caches, strict=True):
                x = layer(x, positions, (keys, values))
            newest = self.lm_head(self.model.norm(x[:, -1:])).argmax(-1)
            tokens = torch.cat([tokens, newest], 1)
        return tokens


class DrafterLayer(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config, 2 * config.hidden_size)
        self.mlp = MLP(config)
        self.hidden_norm = RMSNorm(config)
        self.input_layernorm = RMSNorm(config)
        self.post_attention_layernorm = RMSNorm(config)


class Drafter(nn.Module):
    d2t: Tensor  # [Vd] int64: target id - draft id
    t2d: Tensor  # [V] bool: can be drafted

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.norm_before_residual = config.norm_before_residual
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = DrafterLayer(config)
        self.norm = RMSNorm(config)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))

    def set_draft_vocabulary(self, target_ids: Tensor) -> None:
        """target_ids [Vd], ascending."""
        self.d2t.copy_(target_ids - torch.arange(len(target_ids)))
        self.t2d[target_ids] = True

    def step(self, embedding: Tensor, feature: Tensor, cache: list[KeysValues]) -> tuple[Tensor, Tensor]:
        """Draft step j = len(cache), from every position at once -> hidden [B, T, H], logits [B, T, Vd].

        embedding [B, T, H] of the newest token, feature [B, T, H]: fused streams at step 0, own hidden state later.
        The query of position t sees the step-0 keys up to t and, of the later steps, only its own: what it would see
        if decoding had stopped at t. `cache` holds (k, v) of the earlier steps and is extended.
        """
        layer, attention, j, t = self.midlayer, self.midlayer.self_attn, len(cache), feature.shape[1]
        normed = layer.hidden_norm(feature)
        both = torch.cat([layer.input_layernorm(embedding), normed], -1)  # [B, T, 2H]
        q, k, v = attention.qkv(both, torch.arange(t) + j)
        cache.append((k, v))
        if j == 0:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            (k0, v0), own = cache[0], cache[1:]
            ahead = torch.ones(t, t, dtype=torch.bool).triu(1)
            shared = (q @ k0.transpose(-1, -2)).masked_fill(ahead, float("-inf"))  # [B, heads, T, T]
            single = torch.stack([(q * ki).sum(-1) for ki, _ in own], -1)  # [B, heads, T, j]
            p = (torch.cat([shared, single], -1) * attention.head_dim**-0.5).softmax(-1)
            y = p[..., :t] @ v0
            for i, (_, vi) in enumerate(own):
                y = y + p[..., t + i, None] * vi
        x = (normed if self.norm_before_residual else feature) + attention.out(y)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        return x, self.lm_head(self.norm(x))


def save(model: Target | Drafter, folder: Path) -> None:
    """Weights as bf16; d2t stays int64 and t2d bool."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: x.bfloat16() if x.is_floating_point() else x for name, x in model.state_dict().items()}
    save_file({name: x.contiguous() for name, x in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(model.config.model_dump_json(indent=2) + "\n")


def load_target(folder: Path) -> Target:
    target = Target(TargetConfig.model_validate_json((folder / "config.json").read_text()))
    target.load_state_dict(load_file(folder / "model.safetensors"))
    return target.float().requires_grad_(False)


def load_drafter(folder: Path) -> Drafter:
    drafter = Drafter(DrafterConfig.model_validate_json((folder / "config.json").read_text()))
    drafter.load_state_dict(load_file(folder / "model.safetensors"))
    return drafter.float().requires_grad_(False)
