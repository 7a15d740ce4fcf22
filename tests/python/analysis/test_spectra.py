"""Spectra of FFN activations against closed forms, SciPy and a network's own tensors."""

import json
import math
import time

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from aero.analysis.spectra import SPECTRA, describe_spectra, spectra_text, spectrum
from aero.models import AeroConfig, AeroForCausalLM
from aero.train.recipes.recipe_files import load_recipe
from aero.train.runs.recorder import RECORDED_TOKENS, watched_spectra


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
        assert np.allclose(spectrum(np.linalg.eigvalsh(products), 12), expected, atol=1e-12)


def test_what_is_not_finite_or_constant_has_no_numbers():
    none = dict.fromkeys(SPECTRA)
    for eigenvalues in (np.full(3, np.nan), np.zeros(3)):
        found = spectrum(eigenvalues, 3)
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


def test_activations_that_are_not_finite_have_no_numbers():
    model = AeroForCausalLM(
        AeroConfig.from_label("SM+R", model="mini", vocab_size=50, context_length=16)
    ).eval()
    with torch.no_grad():
        model.transformer.h[1].attn.c_proj.weight[0] = float("inf")
        with watched_spectra(model, most_tokens=99) as found:
            model(torch.randint(50, (1, 16)))
    assert found[0]["entropy_before"] is not None and found[2] == dict.fromkeys(SPECTRA)


def test_a_record_decomposes_with_one_thread_and_gives_the_others_back(monkeypatch):
    threads, seen = torch.get_num_threads(), []
    decompose = torch.linalg.eigvalsh

    def watched(products):
        seen.append(torch.get_num_threads())
        if len(seen) == 3:
            raise torch.linalg.LinAlgError("no eigenvalues")
        return decompose(products)

    monkeypatch.setattr(torch.linalg, "eigvalsh", watched)
    model = AeroForCausalLM(
        AeroConfig.from_label("SM+LN+G", model="mini", vocab_size=50, context_length=16)
    ).eval()
    torch.set_num_threads(3)
    try:
        with pytest.raises(torch.linalg.LinAlgError), watched_spectra(model, most_tokens=99):
            model(torch.randint(50, (1, 16)))
        assert seen == [1, 1, 1] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


def test_spectra_take_less_than_2_percent_of_the_steps_between_two_records():
    # Processor time, so that other programs count little: 0.2 to 0.6 % of the demo's steps. With
    # threads that wait for one another it was several per cent on a busy machine.
    recipe = load_recipe("demo")
    context, between = recipe.model.context_length, recipe.logging.entropy_every_steps
    model = AeroForCausalLM(
        AeroConfig.from_label("SM+LN+G", model="mini", vocab_size=1024, context_length=context)
    )
    ids = torch.randint(1024, (recipe.training.tokens_per_step // context, context))
    windows = ids[: recipe.logging.entropy_windows]

    def least(program):
        taken = []
        for _ in range(3):
            start = time.process_time()
            program()
            taken.append(time.process_time() - start)
        return min(taken)

    def entropies():
        with torch.no_grad():
            model(windows)

    def record():
        with watched_spectra(model, most_tokens=RECORDED_TOKENS) as found:
            entropies()
        assert all(found)

    step = least(lambda: model(input_ids=ids, labels=ids).loss.backward())
    assert least(record) - least(entropies) < 0.02 * between * step


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
