"""Small configurations of others, as their config.json has them."""

from __future__ import annotations

from typing import Any

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
    "max_position_embeddings": 64,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4,
    "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}  # fmt: skip
PYTHIA: dict[str, Any] = {
    "model_type": "gpt_neox", "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 96, "max_position_embeddings": 64,
    "bos_token_id": 0, "eos_token_id": 0, "rotary_pct": 0.25,
}  # fmt: skip
GEMMA = LLAMA | {"model_type": "gemma", "head_dim": 8}
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
OPT: dict[str, Any] = {
    "model_type": "opt", "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "ffn_dim": 96, "max_position_embeddings": 64,
    "word_embed_proj_dim": 64,
}  # fmt: skip
BERT: dict[str, Any] = {
    "model_type": "bert", "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 96, "max_position_embeddings": 64,
}  # fmt: skip
VIT: dict[str, Any] = {
    "model_type": "vit", "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6,
    "intermediate_size": 40, "image_size": 20, "patch_size": 5,
}  # fmt: skip
T5: dict[str, Any] = {
    "model_type": "t5", "vocab_size": 320, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 2,
    "num_decoder_layers": 3, "num_heads": 6,
}  # fmt: skip
