"""Words of other tools for what has another name, or another place, here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LINK = "of a network, as in --network 'wan-100mbps,{}'; in Python report.latency(network=...)"
_ROUND_TRIP = f"round_trip_seconds {_LINK.format('round_trip_seconds=0.04')}"
_BANDWIDTH = f"uplink_mbps and downlink_mbps {_LINK.format('uplink_mbps=20,downlink_mbps=20')}"
_SEVERAL = "several prompts: simulate_generation(batch=...) and `aero cost generate --batch`"
_MEMORY = "matmul_tile_bytes, SPU's bound on one matrix product; no other memory is priced"

# Also of Hugging Face's configurations.
_ANSWERS = {
    **dict.fromkeys(("rtt", "rtt_ms", "rtt_seconds", "ping", "latency", "latency_ms"), _ROUND_TRIP),
    **dict.fromkeys(("mbps", "bandwidth", "bandwidth_mbps"), _BANDWIDTH),
    **dict.fromkeys(("batch", "batch_size"), _SEVERAL),
    **dict.fromkeys(("memory", "memory_gb", "memory_bytes"), _MEMORY),
    **dict.fromkeys(
        ("seq_len", "sequence_length", "tokens", "n_positions", "max_position_embeddings"),
        "context_length",
    ),
    **dict.fromkeys(("layers", "n_layer", "num_hidden_layers"), "num_layers"),
    **dict.fromkeys(("heads", "n_head", "num_attention_heads"), "num_heads"),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd"), "width"),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner"), "hidden_width"),
    **dict.fromkeys(("vocab", "vocabulary"), "vocab_size"),
}  # fmt: skip


def name_here(word: str) -> str | None:
    """What a word of other tools is called here; None for a word that is not known."""
    return _ANSWERS.get(word.strip().lower().replace("-", "_"))


def unknown_keyword(where: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a keyword that does not exist: its name here, or the nearest one."""
    answer = name_here(name)
    if answer is not None:
        return ValueError(f"{where}: unknown keyword {name!r}; here it is {answer}")
    nearest = difflib.get_close_matches(name, [*known], n=1, cutoff=0.0)[0]
    return ValueError(f"{where}: unknown keyword {name!r}; did you mean {nearest!r}?")
