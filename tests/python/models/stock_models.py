"""Tiny random models as `transformers` ships them, one per kind of attention."""

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
)

import aero  # noqa: F401  (registers the attention names)

_COMMON = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
_SIZES = {
    "vocab_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    # Large weights: attention that looks at few keys, and logits without near ties.
    "initializer_range": 0.3,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "intermediate_size": 48}
_NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}

CONFIGS = {
    "gpt2": lambda: GPT2Config(**_SIZES, **_NO_DROPOUT, **_COMMON),
    "gpt2-by-layer": lambda: GPT2Config(
        **_SIZES, **_NO_DROPOUT, **_COMMON, scale_attn_by_inverse_layer_idx=True
    ),
    "gpt-neox": lambda: GPTNeoXConfig(**_SIZES, intermediate_size=48, **_COMMON),
    "llama-grouped": lambda: LlamaConfig(**_GROUPED, **_COMMON),
    "qwen2": lambda: Qwen2Config(**_GROUPED, **_COMMON),
    "mistral-window": lambda: MistralConfig(**_GROUPED, **_COMMON, sliding_window=4),
}


def stock_model(name, implementation, dtype=torch.float32, **overrides):
    """A model whose weights do not depend on the attention implementation or the dtype."""
    config = CONFIGS[name]()
    for key, value in overrides.items():
        setattr(config, key, value)
    config._attn_implementation = implementation
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).to(dtype).eval()
