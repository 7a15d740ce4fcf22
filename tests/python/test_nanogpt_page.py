"""The loop on the page about nanoGPT trains with the penalty of the published weight."""

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "nanogpt.md"
CODE = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[1]
PUBLISHED = "weight=1e-5, tokens=16_256"


def entropies_after(code):
    """Mean entropies of the heads of a layer, [L, H], after the loop of the page."""
    torch.manual_seed(0)
    names = {}
    exec(compile(code, PAGE.name, "exec"), names)
    layers = [attention.entropy.detach() for attention in names["attentions"]]
    return torch.stack([layer.mean(dim=(0, 2)) for layer in layers])


@pytest.mark.filterwarnings("error")
def test_the_published_weight_moves_every_head_and_one_for_each_token_alone_moves_none():
    assert CODE.count(PUBLISHED) == 1
    without = entropies_after(CODE.replace(PUBLISHED, "weight=0.0"))
    held = entropies_after(CODE)
    too_weak = entropies_after(CODE.replace(PUBLISHED, "weight=1e-5, tokens=1"))
    # Starting above half of ln 16, most heads are pulled down.
    assert (without - held).mean() > 0.1
    assert ((without - held).abs() > 1e-3).all()
    assert (without - too_weak).abs().max() < 1e-2 * (without - held).abs().max()
