"""Tiny random models of every type that transformers has, made from the type's own defaults.

A configuration keeps what its type switches on (windows, caps, sinks, grouped heads, mixtures,
kinds of layers) and loses its sizes: names that mean a size get a small one. Lists with an entry
per layer keep one layer of each kind.
"""

from __future__ import annotations

import re
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

VOCABULARY = 48
WINDOW = 4
HEADS, KEY_HEADS, WIDTH = 4, 2, 32
MOST_LAYERS = 4

#: Names of sizes, as patterns of the whole name, with the small size; the first that fits counts.
SIZES: tuple[tuple[str, Any], ...] = (
    (r"(unpadded_|decoder_|ngram_)?vocab_size(_per_layer_input)?", VOCABULARY),
    (r"(pronunciation|shape)_vocab_size", VOCABULARY),
    (r"(hidden_size|d_model|n_embd|emb_dim|embed_dim|embedding_dim|width)", WIDTH),
    (r"(embedding_size|input_embedding_size|output_embedding_size|word_embed_proj_dim)", WIDTH),
    (r"(pronunciation|shape)_embed_dim|lru_width|attention_hidden_size", WIDTH),
    (r"(encoder|decoder)_(ffn_dim|hidden_size)|ffn_dim|dff|dim_ff|feed_forward_size", 48),
    (r"(ffn_)?intermediate_size(_mlp)?|ffn_hidden_size|dense_intermediate_size|d_inner|d_ff", 48),
    (r"(moe|shared|expert).*(intermediate|hidden)_size", 16),
    (r"(num_hidden_layers|n_layers?|num_layers|(encoder|decoder)_layers)", 2),
    (r"num_(encoder|decoder)_layers|num_layers_per_stack|depth|num_blocks", 2),
    (r"(num_attention_heads|n_heads?|num_heads|attention_heads)", HEADS),
    (r"(encoder|decoder)_attention_heads|num_(en|de)coder_attention_heads", HEADS),
    (r"swa_num_attention_heads|index_n_heads", HEADS),
    (r"(head_dim|kv_channels|attention_head_dim|attention_head_size|dim_head|d_head|d_kv)", 8),
    (r"swa_head_dim|global_head_dim|qk_(nope|rope)_head_dim|index_head_dim|rotary_dim", 8),
    (r"v_head_dim", 8),
    (r"(q|kv|o)_lora_rank|qk_head_dim", 16),
    (r"query_pre_attn_scalar", 8),
    (r"attn_logit_softcapping", 1.0),
    (r"linear_(key_|value_)?head_dim", 8),
    (r"linear_num_(key_|value_)?heads", KEY_HEADS),
    (r"(sliding_window(_size)?|attention_window_size|window_size|local_attention)", WINDOW),
    (r"attention_chunk_size|keep_window_size", WINDOW),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|(model_)?max_length", 64),
    (r"max_(source|target)_positions|context_length", 64),
    (r"original_max_position_embeddings", 32),
    (r"(num_(local_|routed_)?|n_routed_|moe_num_)experts", 4),
    (r"num_experts_per_tok(en)?|moe_(topk|k)|top_k_experts", 2),
    (r"(num|n|moe_num)_shared_experts|zero_expert_num", 1),
    (r"n_groups?|topk_group|num_expert_group", 1),
    (r"hidden_size_per_layer_input|router_hidden_size", 8),
    (r"first_k_dense_replace|num_dense_layers", 1),
    (r"num_nextn_predict_layers|num_kv_shared_layers", 0),
    (r"mamba_(d_state|d_conv)|ssm_state_size|state_size", 4),
    (r"mamba_(d_head|headdim|head_dim)", 16),
    (r"mamba_d_ssm", 2 * WIDTH),
    (r"mamba_(n|num)_heads|n_mamba_heads|mamba_n_heads", HEADS),
    (r"mamba_expand|expand", 2),
    (r"mamba_dt_rank|time_step_rank|.*_rank", 4),
    (r"image_size", 8),
    (r"patch_size", 4),
    (r"init_std|initializer_range|initializer_factor", 0.2),
    (r"bos_token_id|cls_token_id|decoder_start_token_id", 1),
    (r"pad_token_id", 0),
    (r"eos_token_id|sep_token_id|forced_eos_token_id", None),
    (r".*_(token_id|token_index)", 3),
)  # fmt: skip
#: Probabilities of dropping something.
DROPOUT = re.compile(r".*(dropout|pdrop|layerdrop|dropout_prob|dropout_p|jitter_noise)(_prob)?")
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_EXPERTS = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}
#: Settings beside the sizes, where the defaults of a type do not make a model.
OTHERS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE}},
    "dbrx": {"attn_config": {"kv_n_heads": KEY_HEADS, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": _EXPERTS,
    "dory": {
        "num_hidden_layers": 4, "n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gemma4_text": {"per_layer_config": None},
    "gemma4_unified_text": {"per_layer_config": None},
    "dots1": _EXPERTS,
    "dots3_note_text": {"per_layer_config": None, "head_dim": 16},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 4, "moe_topk": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "ministral": {"head_dim": 8},
    "modernbert-decoder": {"sep_token_id": 2},
    "musicgen_decoder": {"num_codebooks": 1},
    "musicgen_melody_decoder": {"num_codebooks": 1},
    "nemotron": {"num_key_value_heads": KEY_HEADS},
    "qwen4_exp_text": {
        "indexer_n_heads": HEADS, "indexer_kv_heads": 1, "indexer_head_dim": 8,
        "indexer_budget": 8, "indexer_compress_ratio": 2,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds": False},
    "switch_transformers": {"decoder_start_token_id": 1},
    "t5": {"decoder_start_token_id": 1},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 2 * WIDTH, "attention_head_dim": 2 * WIDTH // HEADS,
    },
    "zamba2": {
        "attention_hidden_size": 2 * WIDTH, "attention_head_dim": 2 * WIDTH // HEADS,
        "num_query_groups": HEADS,
    },
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip


def tiny_config(model_type: str, **others: Any) -> PreTrainedConfig:
    """A small configuration of a type; `others` replace what it would have."""
    config_class = CONFIG_MAPPING[model_type]
    return config_class(**{**small(config_class()), **OTHERS.get(model_type, {}), **others})


def small(config: PreTrainedConfig) -> dict[str, Any]:
    """The settings that make a configuration small, those of its parts included."""
    held = config.to_dict()
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    found: dict[str, Any] = {
        name: {**small(part), **OTHERS.get(part.model_type, {})}
        for name, part in parts.items()
        if isinstance(part, PreTrainedConfig)
    }
    heads = held.get("num_attention_heads") or 0
    for name, value in held.items():
        if name in parts or value is None or isinstance(value, bool | str):
            continue
        if DROPOUT.fullmatch(name) and isinstance(value, int | float):
            found[name] = type(value)(0)
        elif re.fullmatch(r"(swa_)?num_(key_value|kv|global_key_value)_heads", name):
            found[name] = 1 if value == 1 else HEADS if value == heads else KEY_HEADS
        elif isinstance(value, int | float) or "token_id" in name:
            found[name] = _size(name, value)
    return found | _layers(held)


def _layers(held: dict[str, Any]) -> dict[str, Any]:
    """Lists with an entry per layer, cut to a layer of each kind, and how many there are."""
    name = next((n for n in ("num_hidden_layers", "n_layer", "num_layers") if held.get(n)), None)
    lists = {
        key: value
        for key, value in held.items()
        if name and isinstance(value, list) and len(value) == held[name] > 2
    }
    if not lists or name is None:
        return {}
    chosen: dict[str, int] = {}
    for layer in range(held[name]):
        chosen.setdefault(str([value[layer] for value in lists.values()]), layer)
    layers = sorted(chosen.values())[:MOST_LAYERS]
    if len(layers) == 1:
        layers *= 2
    return {name: len(layers)} | {
        key: [_size(key, value[layer]) for layer in layers] for key, value in lists.items()
    }


def _size(name: str, value: Any) -> Any:
    """A small size for a number whose name means one; any other value as it is."""
    if isinstance(value, bool | str | dict | list):
        return value
    return next((size for pattern, size in SIZES if re.fullmatch(pattern, name)), value)
