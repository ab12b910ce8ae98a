"""The shapes of the pair, as the `config.json` of the checkpoints has them."""

from pydantic import BaseModel, ConfigDict

BOS, EOS = 0, 1
CAPTURE = (2, 4, 5)
"""Capture index i is the stream that enters layer i; 2, n // 2, n - 3 as in public EAGLE-3 heads (n = 8 layers)."""


class Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LlamaConfig(Config):
    architectures: tuple[str, ...]
    model_type: str = "llama"
    hidden_act: str = "silu"
    hidden_size: int = 96
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32  # heads x head_dim = 128 differs from hidden_size on purpose
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_position_embeddings: int = 512
    vocab_size: int = 512
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    bos_token_id: int = BOS
    eos_token_id: int = EOS
    torch_dtype: str = "bfloat16"


class TargetConfig(LlamaConfig):
    architectures: tuple[str, ...] = ("LlamaForCausalLM",)
    num_hidden_layers: int = 8
    intermediate_size: int = 144


class EagleConfig(Config):
    # SpecForge and SGLang name a stream by the layer that it leaves: one less than the capture index.
    eagle_aux_hidden_state_layer_ids: tuple[int, ...] = tuple(i - 1 for i in CAPTURE)
    use_aux_hidden_state: bool = True


class DrafterConfig(LlamaConfig):
    architectures: tuple[str, ...] = ("LlamaForCausalLMEagle3",)
    num_hidden_layers: int = 1
    intermediate_size: int = 256
    draft_vocab_size: int = 256
    target_hidden_size: int = 96
    norm_before_residual: bool = False
    eagle_config: EagleConfig = EagleConfig()

    @property
    def capture(self) -> tuple[int, ...]:
        return tuple(i + 1 for i in self.eagle_config.eagle_aux_hidden_state_layer_ids)
