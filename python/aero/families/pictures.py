"""Models that read pictures or sounds beside text: the half that reads text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# An entry that no model has: the family that the text half is of.
WHOLE = "text_half_of"
# Text halves whose layers are another family's; only the angles of their rotations, which are
# public, differ.
_LIKE = {
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
}
# What transformers takes where an entry is missing, as those of a half are that have this value.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma": {
        "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
        "head_dim": 256, "max_position_embeddings": 8192,
    },
    "gemma2": {
        "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "max_position_embeddings": 8192, "query_pre_attn_scalar": 256,
        "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0, "sliding_window": 4096,
        "sliding_window_pattern": 2,
    },
    "gemma3_text": {
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "max_position_embeddings": 131072, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "sliding_window_pattern": 6,
    },
    "llama": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "mistral": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "sliding_window": 4096,
    },
    "qwen2": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
    },
}  # fmt: skip
# Entries of the whole that say which head there is.
_OF_HEAD = ("architectures", "id2label", "num_labels")


def text_half(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the half that reads text, under its own family; else what is given."""
    whole = str(config.get("model_type"))
    text = config.get("text_config", config if whole in _LIKE else None)
    if not isinstance(text, Mapping) or WHOLE in config:
        return config
    family = str(text.get("model_type"))
    family = _LIKE.get(family, family)
    head = {name: config[name] for name in _OF_HEAD if name in config}
    return {**_DEFAULTS.get(family, {}), **text, "architectures": None, **head,
            "model_type": family, WHOLE: whole}  # fmt: skip


def said_of_half(config: Mapping[str, Any]) -> tuple[str, ...]:
    """One note that the other half is left out; none of a model without one."""
    if WHOLE not in config:
        return ()
    return (
        f"embed: {config[WHOLE]} is priced as its text half, {config['model_type']}; what reads "
        "pictures or sounds has no price, and its tokens are counted by the context length",
    )
