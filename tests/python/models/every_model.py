"""`attn_implementation="aero"` on a tiny model of every type in transformers, beside eager.

    python -m tests.python.models.every_model [TYPE ...]

Without types it goes on where the last call ended, and writes the page; `--again` begins anew.
A check is "yes", "refused: why" where the library says no, "WRONG: how much", "unused" where no
layer asks for its attention by name, or "theirs: why" where eager attention fails at the same call.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

import aero  # noqa: F401  (registers the attention names)
from aero.nn.visible_keys import recorded_calls
from aero.tables import markdown_table

from .tiny_models import VOCABULARY, tiny_config

DATA = Path(__file__).parents[3] / "benchmarks" / "results" / "transformers_models_202611.json"
PAGE = DATA.with_suffix(".md")
NEW_TOKENS = 6
_LEFT = 3  # tokens of padding before the second row

Found = list[torch.Tensor]
Check = Callable[[str, Any], Found]

#: Kinds of models: their class, the types that have it, and the heading of their table.
KINDS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "causal": (
        transformers.AutoModelForCausalLM,
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "Language models",
    ),
    "masked": (
        transformers.AutoModelForMaskedLM,
        dict.fromkeys(
            (
                "albert",
                "bert",
                "deberta",
                "distilbert",
                "electra",
                "ernie",
                "eurobert",
                "gte",
                "mobilebert",
                "modernbert",
                "nomic_bert",
                "roberta",
                "xlm-roberta",
            )
        ),
        "Encoders of text",
    ),
    "both": (
        transformers.AutoModelForSeq2SeqLM,
        dict.fromkeys(
            (
                "bart",
                "bigbird_pegasus",
                "blenderbot",
                "led",
                "m2m_100",
                "marian",
                "mbart",
                "mt5",
                "nllb-moe",
                "pegasus",
                "switch_transformers",
                "t5",
                "t5gemma",
                "umt5",
            )
        ),
        "Encoders with decoders: cross attention",
    ),
    "speech": (
        transformers.AutoModelForSpeechSeq2Seq,
        {"whisper": "WhisperForConditionalGeneration"},
        "Speech to text",
    ),
    "image": (
        transformers.AutoModelForImageClassification,
        dict.fromkeys(("beit", "dinov2", "vit")),
        "Images",
    ),
}


def names() -> Iterator[str]:
    """All models, as "kind/type"."""
    for kind, (_, types, _) in KINDS.items():
        theirs = (model_type for model_type in sorted(types) if not model_type.startswith("aero"))
        yield from (f"{kind}/{model_type}" for model_type in theirs)


def built(name: str, implementation: str, dtype: torch.dtype, **others: Any) -> Any:
    """A random model in evaluation mode; its weights do not depend on the implementation."""
    kind, model_type = name.split("/")
    config = tiny_config(model_type, **others)
    if hasattr(config, "is_decoder") and kind in ("causal", "masked"):
        config.is_decoder = kind == "causal"
    torch.manual_seed(0)
    made = KINDS[kind][0].from_config
    if model_type.startswith("musicgen"):  # whose language model is a part with another name
        config, made = (
            config.decoder,
            getattr(transformers, KINDS[kind][1][model_type])._from_config,
        )
    model = made(config, attn_implementation=implementation)
    return model.to(dtype).eval()


def batch(kind: str, model: Any, left_padded: bool = False) -> dict[str, torch.Tensor]:
    """Two rows of nine tokens, or of pixels or sounds."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, VOCABULARY, (2, 9), generator=generator)
    if kind in ("image", "speech"):
        size = model.config.image_size if kind == "image" else None
        shape = (2, 3, size, size) if kind == "image" else (2, model.config.num_mel_bins, 128)
        numbers = torch.randn(shape, generator=generator).to(model.dtype)
        return {model.main_input_name: numbers}
    mask = torch.ones_like(tokens)
    if left_padded:
        tokens[1, :_LEFT] = 0
        mask[1, :_LEFT] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def _logits(kind: str, model: Any, left_padded: bool = False) -> torch.Tensor:
    """Of every token; under padding those of the tokens alone."""
    given: dict[str, Any] = batch(kind, model, left_padded)
    mask = given.get("attention_mask")
    if kind in ("both", "speech"):
        given["decoder_input_ids"] = batch("both", model)["input_ids"][:, :5]
    if kind not in ("masked", "image"):
        given["use_cache"] = False
    found: torch.Tensor = model(**given).logits
    return found[mask.bool()] if mask is not None and kind in ("causal", "masked") else found


def logits(kind: str, model: Any) -> Found:
    """Logits of a whole batch."""
    with torch.no_grad():
        return [_logits(kind, model)]


def padded(kind: str, model: Any) -> Found:
    """Logits of a batch padded on the left."""
    with torch.no_grad():
        return [_logits(kind, model, left_padded=True)]


def gradients(kind: str, model: Any) -> Found:
    """Of every weight, for a sum of logits."""
    found = _logits(kind, model)
    weights = torch.rand(found.shape, generator=torch.Generator().manual_seed(2))
    (found * weights.to(found)).sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def generated(kind: str, model: Any, **options: Any) -> Found:
    """The logits of greedy steps after left padding; the cache grows, or slides with a window."""
    made = model.generate(
        **batch(kind, model, left_padded=True), max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS, do_sample=False, return_dict_in_generate=True,
        output_logits=True, pad_token_id=0, **options,
    )  # fmt: skip
    return list(made.logits)


def static(kind: str, model: Any) -> Found:
    """The same with the cache of fixed size."""
    return generated(kind, model, cache_implementation="static", disable_compile=True)


CHECKS: dict[str, Check] = {
    "logits": logits,
    "gradients": gradients,
    "left padding": padded,
    "generation": generated,
    "static cache": static,
}


def checks(kind: str) -> dict[str, Check]:
    """Those that a kind of model has."""
    skipped = {"image": 2, "speech": 2, "masked": 3}.get(kind, 5)
    chosen = dict(list(CHECKS.items())[:skipped])
    return chosen | ({"generation": generated} if kind == "speech" else {})


def distance(ours: Found, theirs: Found) -> float:
    """The largest difference, as a part of the largest value."""
    if len(ours) != len(theirs):
        return float("inf")
    worst = 0.0
    largest = max(float(x.abs().max()) for x in theirs if x.numel())
    for one, other in zip(ours, theirs, strict=True):
        difference = float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
        worst = max(worst, difference / largest if difference == difference else float("inf"))
        if one.dim() == 2 and not torch.equal(one.argmax(-1), other.argmax(-1)):
            break  # a step of generation that went another way at a near tie
    return worst


def outcome(name: str, check: Check) -> str:
    """What one check gives; float64 decides where float32 differs, as at ties of experts."""
    kind, said = name.split("/")[0], ""
    for dtype, allowed in ((torch.float32, 1e-3), (torch.float64, 1e-4)):
        try:
            theirs = check(kind, built(name, "eager", dtype))
        except Exception as error:
            return said or f"theirs: {_line(error)}"
        if not all(bool(x.isfinite().all()) for x in theirs):
            return said or "theirs: not finite"
        try:
            with recorded_calls() as calls:
                ours = check(kind, built(name, "aero", dtype))
        except Exception as error:
            return said or f"refused: {_line(error)}"
        if not calls:
            return "unused"
        found = distance(ours, theirs)
        if found <= allowed:
            return "yes"
        said = said or f"WRONG: {found:.1g}"
    return said


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    text = text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
    return re.sub(r"/[\w./-]+/", "", text.split("; keep")[0])[:150].replace("|", "/")


def measured(name: str) -> dict[str, str]:
    """The outcome of every check."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {key: outcome(name, check) for key, check in checks(name.split("/")[0]).items()}


INTRODUCTION = f"""\
# Models of transformers with `attn_implementation="aero"`

`python -m tests.python.models.every_model`

A tiny random model of every type that transformers {transformers.__version__} has, with the
windows, caps, sinks, grouped heads and mixtures that the type's own defaults have, computes the
same call with `"eager"` and with `"aero"`. *yes*: the results are equal within 1e-3 of the largest
number, or within 1e-4 in float64 where float32 chose other experts. Generation is greedy, after
left padding, over more tokens than a window sees, so that caches slide; the static cache is the one
of fixed size. *refused*: an error says why. *unused*: no layer asks for its attention by name, as
it has none or computes it with code of its own. *theirs*: transformers' own attention fails at this
call.

BLOOM, Falcon, GPT-Neo and MPT write their attention out in classes of their own, and no two of them
alike: BLOOM adds its slopes in one product with the scores, Falcon has torch's attention beside two
written forms, GPT-Neo has no scale and layers that see the latest tokens alone, MPT cuts its bias
from a longer one. One adapter cannot stand for the four, and four would be copies of code that
transformers changes, so each is refused.
"""


def _asks(logits: str) -> bool:
    """Whether a model asks for its attention by name, and eager attention works."""
    return not logits.startswith(("unused", "theirs")) and "code of its own" not in logits


def page(data: dict[str, dict[str, str]]) -> str:
    """The tables, and the reasons where they do not say yes."""
    parts = [INTRODUCTION]
    for kind, (_, types, title) in KINDS.items():
        found = {name: data[f"{kind}/{name}"] for name in sorted(types) if f"{kind}/{name}" in data}
        asked = [f for f in found.values() if _asks(f["logits"])]
        able = sum(all(text.startswith(("yes", "theirs")) for text in f.values()) for f in asked)
        rows = [
            [f"`{n}`", *(f[key].split(":")[0] for key in checks(kind))] for n, f in found.items()
        ]
        parts.append(f"## {title}\n\nRight: {able} of the {len(asked)} that ask by name.")
        parts.append(markdown_table(["type", *checks(kind)], rows))
    reasons = {
        (n.split("/")[1], text) for n, f in data.items() for text in f.values() if ":" in text
    }
    rows = [[f"`{name}`", text] for name, text in sorted(reasons)]
    return "\n\n".join([*parts, "## Reasons", markdown_table(["type", "why"], rows)]) + "\n"


def main() -> None:
    """Measures what is missing and writes the page."""
    transformers.logging.set_verbosity_error()
    begins_anew = "--again" in sys.argv or not DATA.exists()
    data = {} if begins_anew else json.loads(DATA.read_text("utf-8"))
    given = [name for name in sys.argv[1:] if not name.startswith("-")]
    chosen = [name for name in names() if name.split("/")[1] in given]
    for name in chosen or [name for name in names() if name not in data]:
        data[name] = measured(name)
        print(name, data[name], flush=True)
        DATA.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", "utf-8")
    PAGE.write_text(page(data), "utf-8")


if __name__ == "__main__":
    main()
