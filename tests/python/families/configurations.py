"""A small configuration of every family that has a description."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
)

SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6,
    "intermediate_size": 40, "max_position_embeddings": 32,
}  # fmt: skip
GPT: dict[str, Any] = {"vocab_size": 61, "n_embd": 24, "n_layer": 3, "n_head": 6, "n_positions": 32}
GROUPED: dict[str, Any] = {**SIZES, "num_key_value_heads": 2}
LATENT: dict[str, Any] = {
    **SIZES, "num_key_value_heads": 6, "moe_intermediate_size": 20, "n_routed_experts": 4,
    "n_shared_experts": 2, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 10, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8, "v_head_dim": 6,
}  # fmt: skip
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "bloom": {"vocab_size": 61, "hidden_size": 24, "n_layer": 3, "n_head": 6, "seq_length": 32},
    "cohere": GROUPED,
    "deepseek_v2": {**LATENT, "q_lora_rank": None},
    "deepseek_v3": LATENT,
    "distilbert": {"vocab_size": 61, "dim": 24, "n_layers": 3, "n_heads": 6, "hidden_dim": 40,
                   "max_position_embeddings": 32},
    "falcon": {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3,
               "num_attention_heads": 6, "max_position_embeddings": 32, "ffn_hidden_size": 40},
    "gemma": {**GROUPED, "head_dim": 8},
    "gemma2": {**GROUPED, "head_dim": 8, "sliding_window": 5},
    "gemma3_text": {**GROUPED, "head_dim": 8, "sliding_window": 5},
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_neo": {"vocab_size": 61, "hidden_size": 24, "num_layers": 3, "num_heads": 6,
                "attention_types": [[["global", "local", "local"], 1]], "window_size": 5,
                "max_position_embeddings": 32},
    "gpt_neox": SIZES,
    "gptj": {**GPT, "rotary_dim": 2},
    "gpt_oss": {**GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
                "sliding_window": 5},
    "granite": {**GROUPED, "attention_multiplier": 0.5},
    "llama": {**GROUPED, "attention_bias": True, "mlp_bias": True},
    "mistral": {**GROUPED, "sliding_window": 5},
    "mixtral": {**GROUPED, "num_local_experts": 4},
    "mt5": {"vocab_size": 61, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 2,
            "num_heads": 6},
    "opt": {**{k: v for k, v in SIZES.items() if k != "intermediate_size"}, "ffn_dim": 40,
            "word_embed_proj_dim": 24},
    "phi": SIZES,
    "phi3": {**GROUPED, "pad_token_id": 0},
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 8},
    "qwen3_moe": {**GROUPED, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 20, "mlp_only_layers": [1]},
    "roberta": SIZES,
    "stablelm": GROUPED,
    "starcoder2": GROUPED,
    "t5": {"vocab_size": 61, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 2,
           "num_decoder_layers": 3, "num_heads": 6},
    "vit": {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6,
            "intermediate_size": 40, "image_size": 20, "patch_size": 5},
    "whisper": {"vocab_size": 61, "num_mel_bins": 7, "encoder_layers": 2, "decoder_layers": 3,
                "encoder_attention_heads": 6, "decoder_attention_heads": 4, "d_model": 24,
                "encoder_ffn_dim": 40, "decoder_ffn_dim": 36, "max_source_positions": 10,
                "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1,
                "eos_token_id": 2, "decoder_start_token_id": 1},
}  # fmt: skip


def configuration(family: str) -> Any:
    return AutoConfig.for_model(family, **CONFIGURATIONS[family])


HEADS: dict[str, Any] = {
    **dict.fromkeys(("bert", "distilbert", "roberta"), AutoModelForMaskedLM),
    **dict.fromkeys(("mt5", "t5"), AutoModelForSeq2SeqLM),
    "vit": AutoModelForImageClassification,
    "whisper": AutoModelForSpeechSeq2Seq,
}


def model_of(config: Any) -> torch.nn.Module:
    head: Any = HEADS.get(config.model_type, AutoModelForCausalLM)
    with torch.device("meta"):
        return head.from_config(config)  # type: ignore[no-any-return]
