import math

import pytest
import torch

from aero.models import AeroConfig, AeroForCausalLM


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("SM+LN+G", {}),
        ("EReg(SM(t)+ScFuFFN)", {"alpha": [1.0, 1.0], "beta": [1.0, 1.0]}),
        # The gains of shaped attention bear the same letters and are others.
        ("SOTA:SM+LN+R", {}),
        ("SM+LR(layer)", {"negative_slope": [0.01, 0.01]}),
        ("SM+LR(global)", {"negative_slope": [0.01]}),
    ],
)
def test_networks_begin_with_these_scalars(label, expected):
    model = AeroForCausalLM(AeroConfig.from_label(label, model="tiny"))
    found = model.learned_scalars()
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values)


def test_learned_values_and_pruned_layers_show():
    model = AeroForCausalLM(AeroConfig.from_label("SM+ScFFN_i1", model="tiny"))
    with torch.no_grad():
        model.transformer.h[0].mlp.alpha.fill_(2.5)
    alpha = model.learned_scalars()["alpha"]
    assert alpha[0] == 2.5 and math.isnan(alpha[1])
