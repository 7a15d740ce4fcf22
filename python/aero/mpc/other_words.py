"""Words of other tools for what has another name, or another place, here."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import NamedTuple

# Names that an error lists.
_FEW = 10
# What others call stacks of ours.
_STACKS = {
    "cheetah": "spu-0.9.5", "bumblebee": "openbumblebee", "semi2k": "spu-semi2k",
    "aby3": "spu-aby3", "puma": "spu-aby3", "securenn": "spu-securenn",
}  # fmt: skip


class _Answer(NamedTuple):
    """What some words are here: options of commands that have them, and the place elsewhere."""

    options: tuple[str, ...]
    words: str


_LINK = (
    "of a network, as in --network 'wan-100mbps,{}'; in Python report.latency(network=...); "
    "`aero cost advise` and `where` have --{}"
)
_ROUND_TRIP = f"round_trip_seconds {_LINK.format('round_trip_seconds=0.04', 'rtt-ms')}"
_BANDWIDTH = (
    f"uplink_mbps and downlink_mbps {_LINK.format('uplink_mbps=20,downlink_mbps=20', 'mbps')}"
)
_MEMORY = (
    "matmul_tile_bytes, SPU's bound on one matrix product; `aero cost advise --memory` takes that "
    "of a party, and `aero cost where` tells it"
)
_SEVERAL = "several prompts: simulate_generation(batch=...) and `aero cost generate --batch`"
_TIMED = "{0} of report.latency() in Python, and --{0} of commands that tell seconds"

# Also of Hugging Face's configurations.
_ANSWERS = {
    word: _Answer(options, answer)
    for words, options, answer in (
        (("rtt", "rtt_ms", "rtt_seconds", "ping", "latency", "latency_ms"), ("rtt_ms",),
         _ROUND_TRIP),
        (("mbps", "bandwidth", "bandwidth_mbps"), ("mbps",), _BANDWIDTH),
        (("network", "link"), ("network", "rtt_ms", "mbps"), _TIMED.format("network")),
        (("compute", "machines", "machine"), ("compute",), _TIMED.format("compute")),
        (("batch", "batch_size"), ("batch",), _SEVERAL),
        (("memory", "memory_gb", "memory_bytes"), ("memory",), _MEMORY),
        (("protocol", "protocols"), ("stack",), "stack, such as stack=spu-semi2k"),
        (("seq_len", "sequence_length", "tokens", "n_positions", "max_position_embeddings"),
         ("context_length",), "context_length"),
        (("layers", "n_layer", "num_hidden_layers"), (), "num_layers"),
        (("heads", "n_head", "num_attention_heads"), (), "num_heads"),
        (("hidden_size", "d_model", "n_embd"), (), "width"),
        (("intermediate_size", "ffn_dim", "n_inner"), (), "hidden_width"),
        (("vocab", "vocabulary"), ("vocab_size",), "vocab_size"),
        *(((word,), (f"stack {own}",), f"stack={own}") for word, own in _STACKS.items()),
    )
    for word in words
}  # fmt: skip


def name_here(word: str, options: Collection[str] = ()) -> str | None:
    """What a word of other tools is called here; None for a word that is not known.

    Args:
        word: As it was given.
        options: Those of the command that it was given to; empty: it was given elsewhere.
    """
    answer = _ANSWERS.get(_plain(word))
    if answer is None:
        return None
    own = [
        f"--{one.replace('_', '-')}" for one in answer.options if one.partition(" ")[0] in options
    ]
    return " and ".join(own) or answer.words


def unknown_keyword(where: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a keyword that does not exist: its name here, or the nearest one."""
    answer, known = name_here(name), [*known]
    here = nearest(name, known) if answer is None else f"; here it is {answer}"
    few = " or ".join(known) if len(known) < _FEW else "a size, or a field of stack or network"
    return ValueError(f"{where}: unknown keyword {name!r}{here or f'; expected {few}'}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Asks for the nearest of the names that there are; empty where none is near."""
    near = difflib.get_close_matches(name, [*known], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def stack_here(name: str, known: Iterable[str]) -> str:
    """Asks for the stack that others call so, or for the nearest."""
    return nearest(_STACKS.get(_plain(name), name), known)


def _plain(word: str) -> str:
    return word.strip().lower().replace("-", "_")
