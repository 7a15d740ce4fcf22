"""docs/reference/models.md has the result of every feature on every model type."""

from __future__ import annotations

import pytest
import torch

from aero.models.outputs import CACHE_FIELD

from . import supported


def test_the_page_of_supported_models_is_what_the_calls_give() -> None:
    written = supported.PAGE.read_text("utf-8")
    found = supported.page()
    if CACHE_FIELD == "past_key_values":  # transformers before 5.24 refuses two more
        late = ("| `codegen`", "| `gptj`")
        written, found = (
            "".join(line for line in text.splitlines(keepends=True) if not line.startswith(late))
            for text in (written, found)
        )
    assert written == found, (
        "docs/reference/models.md is stale: python -m tests.python.models.supported"
    )
    assert "WRONG" not in written and written.count(" yes ") > 40


def test_a_wrong_result_shows_as_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    aero_model = supported.model

    def shifted(name: str, implementation: str = "aero") -> torch.nn.Module:
        made = aero_model(name, implementation)
        if implementation == "aero":
            torch.nn.init.ones_(made.lm_head.weight)
        return made

    monkeypatch.setattr(supported, "model", shifted)
    assert supported.cell(supported.same_logits, "llama") == "WRONG"
