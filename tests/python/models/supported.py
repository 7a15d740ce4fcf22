"""Which models and features of transformers work: each cell of the page is a call that ran.

`python -m tests.python.models.supported` in the repository's folder writes
docs/reference/models.md, and test_supported.py compares the page with the calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import aero
from aero.tables import markdown_table

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "models.md"
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
_SIZES = {
    "vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.3,
    "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": None,
}  # fmt: skip
_FLAT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
#: Model types of transformers, with their settings besides the sizes.
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": _FLAT,
    "gpt_neox": {},
    "llama": {"num_key_value_heads": 2},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 4},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "phi": {"attention_dropout": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "gemma": {"num_key_value_heads": 2, "head_dim": 8},
    "olmo": {},
    "starcoder2": {"num_key_value_heads": 2, "attention_dropout": 0.0, "residual_dropout": 0.0,
                   "embedding_dropout": 0.0},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 8},
    "gpt_oss": {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2,
                "num_experts_per_tok": 1},
    "bloom": {"n_head": 4, "n_layer": 2},
    "codegen": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, **_FLAT},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, **_FLAT},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]]},
    "falcon": {},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4},
}  # fmt: skip


def model(name: str, implementation: str = "aero") -> Any:
    """A tiny random model; the weights do not depend on the implementation."""
    own = MODELS[name]
    sizes = {
        key: value for key, value in _SIZES.items() if "n_head" not in own or "hidden" not in key
    }
    if "d_model" in own or "n_embd" in own:
        sizes = {key: value for key, value in sizes.items() if key != "intermediate_size"}
    config = AutoConfig.for_model(name, **{**sizes, **own})
    config._attn_implementation = implementation
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def same_logits(name: str) -> bool:
    """Whether logits are those of transformers' own attention."""
    ours, theirs = (model(name, way)(TOKENS).logits for way in ("aero", "eager"))
    return torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def entropies(name: str) -> bool:
    """Whether the entropies are those of the weights that eager attention returns."""
    found = torch.stack(aero.entropies(model(name, "eager"), TOKENS).layers)
    theirs = model(name, "eager")(TOKENS, output_attentions=True).attentions
    # Without what a sink has taken: the entropies are those over the keys.
    shares = [weights / weights.sum(-1, keepdim=True) for weights in theirs]
    wanted = torch.stack([torch.special.entr(weights).sum(-1) for weights in shares])
    return torch.allclose(found, wanted, atol=1e-4)


def penalty(name: str) -> bool:
    """Whether the penalty reaches the query weights."""
    trained = aero.with_entropy_penalty(model(name)).train()
    output = trained(TOKENS, labels=TOKENS)
    output.entropy_loss.backward()
    return any(p.grad is not None and bool(p.grad.abs().sum()) for p in trained.parameters())


def generates(name: str) -> bool:
    """Whether greedy generation with a cache gives eager attention's tokens."""
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    ours, theirs = (model(name, way).generate(TOKENS, **options) for way in ("aero", "eager"))
    return torch.equal(ours, theirs)


def converts(name: str) -> bool:
    """Whether `aero.convert` makes a softmax-only network of it."""
    return aero.convert(model(name, "eager"), "SM+ScFuFFN")(TOKENS).logits.shape[-1] == 16


FEATURES: dict[str, Callable[[str], bool]] = {
    '`attn_implementation="aero"`': same_logits,
    "`generate`": generates,
    "`aero.entropies`": entropies,
    "`aero.with_entropy_penalty`": penalty,
    "`aero.convert`": converts,
}


def cell(feature: Callable[[str], bool], name: str) -> str:
    """The call's outcome: yes, or no with an error that says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "yes" if feature(name) else "WRONG"
        except (ValueError, TypeError, NotImplementedError):
            return "refused"


def page() -> str:
    """docs/reference/models.md."""
    rows = [
        [f"`{name}`", *(cell(feature, name) for feature in FEATURES.values())] for name in MODELS
    ]
    return (
        "# Supported models\n\n"
        "Each cell is a call on a tiny random model of this type (`model_type` of its "
        "configuration in transformers). *yes*: the result equals that of transformers' own "
        "attention, or the gradient arrives. *refused*: an error says what to do instead; no call "
        "computes something else in silence. [Every type of transformers]"
        "(../../benchmarks/results/transformers_models_202611.md) has a line of its own elsewhere."
        "\n\n"
        f"{markdown_table(['model type', *FEATURES], rows)}\n\n"
        "Head masks and float8 are refused; `bloom`, `falcon`, `gpt_neo` and `mpt` compute "
        "attention with code of their own. Entropies are those without dropout, and "
        "those over the keys, without what an attention sink takes. `codegen` and `gptj` work from "
        "transformers 5.24 on, and are refused before. [Transforms](transforms.md) lists the "
        "transforms of torch that the operators support.\n\n"
        "`python -m tests.python.models.supported` writes this page, and a test compares it with "
        "the calls.\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
