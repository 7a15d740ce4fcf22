import pytest
import torch

from .labels import FAMILIES, LABELS, tiny


def _changes_of_earlier_logits(model):
    """Which positions' logits change when the last ten of 32 tokens do."""
    tokens = torch.randint(256, (2, 32))
    changed = tokens.clone()
    changed[:, 22:] = (changed[:, 22:] + 1) % 256
    with torch.no_grad():
        return (model(tokens).logits - model(changed).logits).abs().amax(dim=(0, 2))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", LABELS)
def test_evaluation_is_causal(label, family):
    model = tiny(label, family)
    with torch.no_grad():
        model.train()(torch.randint(256, (4, 32)))
    difference = _changes_of_earlier_logits(model.eval())
    assert difference[:22].max().item() < 1e-5
    assert difference[22:].min().item() > 1e-3


@pytest.mark.parametrize("label", ["SM+FN+R", "SM+FN(scalar)+ScFuFFN"])
def test_training_with_foldable_norm_is_not_causal(label):
    difference = _changes_of_earlier_logits(tiny(label).train())
    assert difference[:22].max().item() > 1e-4


def test_padding_does_not_enter_foldable_statistics():
    model = tiny("SM+FN+R")
    tokens = torch.randint(256, (2, 16))
    padded = torch.cat((tokens, torch.randint(256, (2, 8))), dim=1)
    mask = torch.cat((torch.ones(2, 16), torch.zeros(2, 8)), dim=1).long()
    with torch.no_grad():
        expected = model.train()(tokens).logits
        actual = model(padded, attention_mask=mask).logits[:, :16]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
