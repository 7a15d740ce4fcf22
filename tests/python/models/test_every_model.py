"""The page of all models of transformers says what the calls give, for one of each kind."""

from __future__ import annotations

import json
import re

import pytest
import torch
import transformers

from . import every_model

DATA = json.loads(every_model.DATA.read_text("utf-8"))
# A plain decoder; sliding windows; caps; sinks; learned masks; values of another width; masks that
# a model adds to; layers that do not say whether they are causal; an encoder; cross attention;
# biases of positions; sounds; images; attention of a model's own; none.
SOME = (
    "causal/gpt2", "causal/gemma3_text", "causal/gemma2", "causal/gpt_oss", "causal/doge",
    "causal/deepseek_v3", "causal/deepseek_v4", "causal/bigbird_pegasus", "masked/bert",
    "both/bart", "both/t5", "speech/whisper", "image/vit", "causal/bloom", "causal/mamba",
)  # fmt: skip
IS_PAGE_S = f"transformers {transformers.__version__} " in every_model.PAGE.read_text("utf-8")


@pytest.mark.skipif(not IS_PAGE_S, reason="the page is of another transformers")
@pytest.mark.parametrize("name", SOME)
def test_the_outcomes_on_the_page_are_those_of_the_calls(name: str) -> None:
    assert every_model.measured(name) == DATA[name]


@pytest.mark.skipif(not IS_PAGE_S, reason="the page is of another transformers")
def test_the_page_has_every_model_and_no_wrong_result() -> None:
    assert set(DATA) == set(every_model.names())
    written = every_model.PAGE.read_text("utf-8")
    assert every_model.page(DATA) == written, "python -m tests.python.models.every_model"
    assert "WRONG" not in written
    able, asked = map(int, re.findall(r"Right: (\d+) of the (\d+)", written)[0])
    assert able >= 0.95 * asked > 100


def test_a_wrong_result_shows_as_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    made = every_model.built

    def shifted(name: str, implementation: str, dtype: torch.dtype) -> torch.nn.Module:
        model = made(name, implementation, dtype)
        if implementation == "aero":
            torch.nn.init.ones_(model.model.layers[0].self_attn.q_proj.weight)
        return model

    monkeypatch.setattr(every_model, "built", shifted)
    for check in every_model.CHECKS.values():
        assert every_model.outcome("causal/llama", check).startswith("WRONG")
