"""The words, bounds and measured error of an absorption."""

import pytest
import torch

from aero.conversion import absorb_ffn, prune_ffn
from aero.conversion.absorbing import Absorption, LayerAbsorption

from .networks import VOCABULARY, aero_network, logits_of, relative_difference


def test_an_absorption_is_a_table():
    layers = (
        LayerAbsorption(0, 1.5, 2.25, "absorbed"),
        LayerAbsorption(1, 1234.5, 777.0, "kept"),
        LayerAbsorption(2, 1.0, 1.0, "none"),
    )
    absorption = Absorption(None, layers, 12.5, 3.21e-7)
    assert str(absorption).splitlines() == [
        "layer  map's condition  new condition  FFN",
        "    0              1.5           2.25  absorbed",
        "    1         1.23e+03            777  kept",
        "    2                1              1  none",
        "1 of 2 FFNs absorbed at condition numbers up to 12.5; measured relative error of the "
        "logits 3.2e-07",
    ]


def _with_maps(*diagonals):
    """Fused FFNs whose maps are diagonal, exactly."""
    model = aero_network("SM+FuFFN", num_layers=len(diagonals))
    with torch.no_grad():
        for block, first in zip(model.transformer.h, diagonals, strict=True):
            block.mlp.weight.zero_()[0, 0] = first - 1.0
    return model


@pytest.mark.parametrize(
    ("bound", "outcomes", "conditions"),
    [
        (16.0, "aa", [1, 4]),  # the identity in the middle
        (4.0, "aa", [1, 4]),  # at the bound itself
        (3.99, "kk", [4, 4]),
        (1.0, "kk", [4, 4]),
    ],
)
def test_a_map_whose_condition_is_the_bound_goes(bound, outcomes, conditions):
    report = absorb_ffn(_with_maps(4.0, 4.0), max_condition=bound)
    assert "".join(layer.outcome[0] for layer in report.layers) == outcomes
    assert [layer.map_condition for layer in report.layers] == pytest.approx([4, 4])
    assert [layer.new_condition for layer in report.layers] == pytest.approx(conditions)
    assert report.max_condition == bound and report.relative_error < 1e-6


def test_a_kept_map_is_multiplied_by_the_frame_before_it():
    report = absorb_ffn(_with_maps(2.0, 3.0, 64.0, 5.0), max_condition=5.0)
    assert "".join(layer.outcome[0] for layer in report.layers) == "aaka"
    assert [layer.new_condition for layer in report.layers] == pytest.approx([1, 3, 192, 5])
    assert report.model.config.conversion_steps == [
        "absorb_ffn (exact): FFN of layers 0, 1, 3 went into attention, embeddings and head"
    ]
    pruned = absorb_ffn(prune_ffn(_with_maps(2.0, 3.0), layers=[0]))
    assert pruned.model.config.conversion_steps[-1] == (
        "absorb_ffn (exact): FFN of layer 1 went into attention, embeddings and head"
    )
    assert [layer.outcome for layer in pruned.layers] == ["none", "absorbed"]


def test_the_error_of_an_absorption_is_measured_on_64_tokens():
    model = aero_network("SM+ScFuFFN", context_length=80)
    report = absorb_ffn(model)
    ids = torch.randint(VOCABULARY, (2, 64), generator=torch.Generator().manual_seed(0))
    actual, expected = (logits_of(each, ids).double() for each in (report.model, model))
    assert report.relative_error == pytest.approx(relative_difference(actual, expected), rel=1e-6)
