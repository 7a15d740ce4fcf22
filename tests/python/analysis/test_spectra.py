"""Spectra of FFN activations against closed forms, SciPy and a network's own tensors."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from aero.analysis.spectra import SPECTRA, describe_spectra, spectra_text, spectrum
from aero.models import AeroConfig, AeroForCausalLM
from aero.train.runs.recorder import watched_spectra


def shares(*values):
    return np.array(values, dtype=np.float64) / sum(values)


def test_equal_directions_and_a_single_one_have_the_extreme_numbers():
    found = describe_spectra(shares(1, 0, 0, 0), shares(1, 1, 1, 1))
    assert set(found) == set(SPECTRA)
    assert found["entropy_before"] == 0.0 and found["participation_before"] == 1.0
    # (1 - 1/4) + (1 - 2/4) + (1 - 3/4) + 0 = 1.5, of 4 / 2
    assert found["enrichment_before"] == pytest.approx(0.75)
    assert found["entropy_after"] == pytest.approx(math.log(4), abs=1e-5)
    assert found["participation_after"] == pytest.approx(4.0)
    assert found["enrichment_after"] == pytest.approx(0.0, abs=1e-6)


def test_numbers_are_those_of_their_formulas():
    before, after = shares(5, 3, 1, 0.5, 0), shares(2, 1.5, 1.4, 1, 0.1)
    found = describe_spectra(before, after)
    kept = before[before > 0]
    assert found["entropy_before"] == pytest.approx(-(kept * np.log(kept)).sum(), rel=1e-5)
    assert found["participation_after"] == pytest.approx(1 / (after**2).sum(), rel=1e-5)
    area = sum(before[: k + 1].sum() - (k + 1) / 5 for k in range(5))
    assert found["enrichment_before"] == pytest.approx(area / 2.5, rel=1e-5)
    assert found["jensen_shannon"] == pytest.approx(jensenshannon(before, after) ** 2, rel=1e-4)


def test_products_of_tokens_have_the_spectrum_of_the_covariance():
    rows = np.random.default_rng(0).normal(size=(7, 12)) * np.arange(1, 13)
    rows -= rows.mean(axis=0)
    eigenvalues = np.sort(np.linalg.svd(rows, compute_uv=False) ** 2)[::-1]
    expected = np.concatenate([eigenvalues, np.zeros(5)]) / eigenvalues.sum()
    for products in (rows @ rows.T, rows.T @ rows):
        assert np.allclose(spectrum(products, 12), expected, atol=1e-12)


def test_what_is_not_finite_or_constant_has_no_numbers():
    none = dict.fromkeys(SPECTRA)
    for products in (np.full((3, 3), np.nan), np.zeros((3, 3))):
        found = spectrum(products, 3)
        assert describe_spectra(found, found) == none
    assert json.loads(json.dumps(none)) == none


@pytest.mark.parametrize("label", ["SM+LN+G", "SM+FN+R", "SM+ScFFN"])
def test_a_network_is_measured_before_and_behind_its_activation(label):
    torch.manual_seed(0)
    config = AeroConfig.from_label(
        label, num_layers=2, num_heads=2, head_dim=8, width=16, hidden_width=24,
        vocab_size=50, context_length=16,
    )  # fmt: skip
    model = AeroForCausalLM(config).eval()
    ids = torch.randint(50, (3, 16))
    seen = {}
    hook = model.transformer.h[1].register_forward_hook(lambda *_: None)
    for name, module in model.transformer.h[1].named_modules():
        if name.endswith("c_fc"):
            module.register_forward_hook(lambda m, a, out: seen.update(before=out))
        if name.endswith("mlp.c_proj") or name.endswith("ffn.c_proj"):
            module.register_forward_pre_hook(lambda m, a: seen.update(after=a[0]))
    with torch.no_grad(), watched_spectra(model, most_tokens=40) as found:
        model(ids)
    hook.remove()
    for side in ("before", "after"):
        rows = seen[side].flatten(0, 1)[:40].double().numpy()
        values = np.linalg.eigvalsh(np.cov(rows.T))
        ratio = values.sum() ** 2 / (values**2).sum()
        assert found[1][f"participation_{side}"] == pytest.approx(ratio, rel=1e-3)
    assert found[0] is not None and (found[0]["jensen_shannon"] < 1e-6) == (label == "SM+ScFFN")
    # Only the first pass counts, and nothing stays on the model.
    kept = dict(found[0])
    with torch.no_grad():
        model(ids[:1])
    assert found[0] == kept


def test_a_fused_ffn_has_no_spectra():
    config = AeroConfig.from_label(
        "SM+ScFuFFN", num_layers=2, num_heads=2, head_dim=8, width=16, vocab_size=50,
        context_length=16,
    )  # fmt: skip
    model = AeroForCausalLM(config).eval()
    with torch.no_grad(), watched_spectra(model, most_tokens=99) as found:
        model(torch.randint(50, (1, 16)))
    assert found == [None, None] and spectra_text(found) == ""


def test_the_line_says_how_many_directions_each_layer_uses():
    found = describe_spectra(shares(1, 0), shares(1, 1))
    text = spectra_text([None, found])
    assert text.endswith("layer 1: 1.0 -> 2.0 (JS 0.22)") and "layer 0" not in text
    assert "- -> -" in spectra_text([dict.fromkeys(SPECTRA)])
