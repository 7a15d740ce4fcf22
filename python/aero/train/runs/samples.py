"""One line of the validation text through a trained network: attention and a continuation.

`sample.json` of a run folder, format 1: `text`, a line of the corpus; its `tokens` as text;
`attention`, [L][H] triangles whose row i has i + 1 weights; and `continuation`, the text that the
network writes after it. Runs of one corpus have the same line.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from aero.internals.errors import TrainingError
from aero.internals.run_files import Sample
from aero.models import AeroForCausalLM
from aero.models.row_entropies import entropies
from aero.reading import shown

# Words enough for heads to differ, few enough for every head's map to be read on one page.
_CHARACTERS = range(30, 61)
# Words of letters, as in prose: no code, no list of names, no copyright.
_PROSE = re.compile(r"[A-Z][a-z]*(?:[,;:]? [A-Za-z][a-z]*(?:[-'][a-z]+)?){4,}[.,:;!?]?")
_SEARCHED_TOKENS = 8192
_MOST_TOKENS = 24
_NEW_TOKENS = 48
# Greedy text of a small network repeats itself; this is the usual mild sampling.
_TEMPERATURE, _TOP_K, _SEED = 0.8, 20, 0


def sentence_of(text: str) -> str:
    r"""Returns a line that a person would write: the first of 30 to 60 characters.

    It begins with a capital letter and has five words or more, and nothing but words; the sign of
    a comment is left off. Without one: the first line with five words; without that, the beginning
    of the text.

    Example:
        >>> from aero.train.runs.samples import sentence_of
        >>> sentence_of("def f():\n    # The name of the file that is open.")
        'The name of the file that is open.'
    """
    lines = [line.strip() for line in text.splitlines()]
    plain = (line.strip("#\"' ") for line in lines)
    fitting = [
        *(line for line in plain if _PROSE.fullmatch(line)),
        *(line for line in lines if sum(map(str.isalpha, line.split())) > 4),
    ]
    first = (line for line in fitting if len(line) in _CHARACTERS)
    return next(first, " ".join(text.split())[: _CHARACTERS.stop - 1])


def look_at(
    model: Any, tokenizer: PreTrainedTokenizerBase, text: str, *, most_tokens: int
) -> tuple[list[str], NDArray[np.float64], NDArray[np.float64]]:
    """Returns the first tokens of a text, and where every head looks in them.

    Args:
        model: any decoder that `aero.entropies` takes.
        tokenizer: its tokenizer.
        text: at least one token of it.
        most_tokens: later tokens are left out, as those beyond the context length are.

    Returns:
        T tokens as text, weights [L, H, T, T], and the most that each row's entropy can be, [L, T].

    Raises:
        TrainingError: the text has no token.
    """
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    ids = ids[: min(most_tokens, _context_length(model))]
    if not ids:
        raise TrainingError(f"the text must have at least one token, got {shown(text)}")
    found = entropies(model, torch.tensor([ids]), attention_maps=True)
    maps = torch.stack([layer[0] for layer in found.attention_maps or ()]).double().cpu().numpy()
    largest = found.visible_keys[:, 0].double().log().cpu().numpy()
    return [str(tokenizer.decode([token])) for token in ids], maps, largest


def _context_length(model: Any) -> int:
    if isinstance(model, AeroForCausalLM):
        return model.config.spec.context_length
    return getattr(model.config, "max_position_embeddings", None) or sys.maxsize


def sample_of(model: AeroForCausalLM, tokenizer: PreTrainedTokenizerBase, ids: Any) -> Sample:
    """Returns the content of `sample.json`.

    Args:
        model: the network, in evaluation mode.
        tokenizer: its tokenizer.
        ids: validation tokens, [N].
    """
    text = sentence_of(str(tokenizer.decode(ids[:_SEARCHED_TOKENS].tolist())))
    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    room = model.config.spec.context_length - len(prompt)
    written = ""
    if room > 0:
        written = _continuation(model, tokenizer, prompt, min(room, _NEW_TOKENS))
    tokens, maps, _ = look_at(model, tokenizer, text, most_tokens=_MOST_TOKENS)
    return Sample(
        text=text,
        tokens=tokens,
        attention=[
            [[_rounded(row[: i + 1]) for i, row in enumerate(head)] for head in layer]
            for layer in maps
        ],
        continuation=written,
    )


def _continuation(
    model: AeroForCausalLM, tokenizer: PreTrainedTokenizerBase, prompt: list[int], new: int
) -> str:
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(_SEED)
        ids = torch.tensor([prompt], device=model.device)
        made: Any = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=True,
            temperature=_TEMPERATURE, top_k=_TOP_K, pad_token_id=tokenizer.eos_token_id,
        )  # fmt: skip
    return str(tokenizer.decode(made[0, len(prompt) :], skip_special_tokens=True))


def _rounded(row: NDArray[np.float64]) -> list[float]:
    """Four digits: a weight below one in ten thousand is nothing to look at."""
    return [round(float(weight), 4) for weight in row]
