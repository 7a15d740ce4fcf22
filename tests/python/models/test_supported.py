"""docs/reference/models.md has the result of every feature on every model type."""

from __future__ import annotations

import pytest
import torch

from . import supported


def test_the_page_of_supported_models_is_what_the_calls_give() -> None:
    written = supported.PAGE.read_text("utf-8")
    assert written == supported.page(), (
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
