"""How many keys a row sees is counted in the mask that its layer got."""

import numpy as np
import pytest
import torch

import aero

from .windowed_models import CONFIGS, windowed_model

T = 11
TOKENS = torch.randint(1, 16, (2, T), generator=torch.Generator().manual_seed(1))


def padding(side):
    mask = torch.ones(2, T, dtype=torch.long)
    mask[1, slice(0, 4) if side == "left" else slice(-4, None)] = 0
    return mask


def counted(mask):
    return {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}


PACKED = torch.cat([torch.arange(5), torch.arange(6)]).expand(2, -1)
PER_QUERY = torch.ones(T, T, dtype=torch.bool).tril() & ~torch.ones(T, T, dtype=torch.bool).tril(-3)
BATCHES = {
    "whole": {},
    "left-padded": counted(padding("left")),
    "right-padded": counted(padding("right")),
    "packed": {"position_ids": PACKED},
    "positions that jump": {"position_ids": torch.tensor([[0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12]])},
    "a mask per query": {"attention_mask": PER_QUERY.expand(2, 1, T, T)},
}


def weights_of(model, **arguments):
    """Eager's weights, L tensors [B, H, T, S], with zeros in rows of padding."""
    mask = arguments.get("attention_mask")
    if mask is not None and mask.dim() == 4:  # eager adds what it gets
        least = torch.finfo(model.dtype).min
        additive = torch.zeros(mask.shape, dtype=model.dtype).masked_fill(~mask, least)
        arguments = {**arguments, "attention_mask": additive}
    arguments = {"input_ids": TOKENS, "use_cache": False, **arguments}
    layers = model(**arguments, output_attentions=True).attentions
    if mask is None or mask.dim() != 2:
        return layers
    return [layer * mask[:, None, -layer.shape[2] :, None].bool() for layer in layers]


def seen_by_eager(name, **arguments):
    with torch.no_grad():
        layers = weights_of(windowed_model(name, "eager", is_uniform=True), **arguments)
    return torch.stack([(weights[:, 0] > 0).sum(-1) for weights in layers])


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_keys_of_every_layer_are_those_of_eagers_weights(name, batch):
    arguments = BATCHES[batch]
    model = windowed_model(name, "sdpa", is_uniform=True)
    found = aero.entropies(model, {"input_ids": TOKENS, **arguments})
    expected = seen_by_eager(name, **arguments)
    assert torch.equal(found.visible_keys, expected)
    assert torch.equal(found.row_mask, (expected > 0).all(0))
    # Heads that look at all keys alike are as high as they can be.
    shares = found.summary().head_entropy_normalized_visible
    np.testing.assert_allclose(shares, 1, rtol=0, atol=1e-6)
