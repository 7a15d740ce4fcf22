"""Tiny random models whose layers see windows or chunks of their sequence."""

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    Llama4TextConfig,
    MistralConfig,
    Qwen2Config,
    Starcoder2Config,
)

import aero  # noqa: F401  (registers the attention names)

WINDOW = 4
_SIZES = {
    "vocab_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": 0,
}
CONFIGS = {
    "mistral": lambda: MistralConfig(**_SIZES, sliding_window=WINDOW),
    "qwen2": lambda: Qwen2Config(
        **_SIZES, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **_SIZES,
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 2,
    ),
    "starcoder2": lambda: Starcoder2Config(
        **_SIZES, sliding_window=WINDOW, residual_dropout=0.0, embedding_dropout=0.0
    ),
    "llama4": lambda: Llama4TextConfig(
        **_SIZES,
        head_dim=8,
        intermediate_size_mlp=48,
        attention_chunk_size=WINDOW,
        layer_types=["chunked_attention", "full_attention"] * 2,
        moe_layers=[],
    ),
}


def windowed_model(name, implementation, dtype=torch.float32, *, is_uniform=False):
    """A model of these weights whatever its implementation; uniform ones look at all keys alike."""
    config = CONFIGS[name]()
    config._attn_implementation = implementation
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    if is_uniform:
        for path, parameter in model.named_parameters():
            if "q_proj" in path:
                torch.nn.init.zeros_(parameter)
    return model
