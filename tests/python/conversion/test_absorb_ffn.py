import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.python.refusals import assert_refused

import aero
from aero import mpc
from aero.conversion import absorb_ffn
from aero.models import AeroConfig, AeroForCausalLM

from .networks import FAMILIES, aero_network, gpt2, logits_of, relative_difference, tokens


def _maps(model):
    """M = beta I + W / alpha of every layer by numpy, None for a pruned FFN."""
    maps = []
    for block in model.transformer.h:
        if block.mlp is None:
            maps.append(None)
            continue
        one = torch.ones(1)
        scale = [getattr(block.mlp, name, one).item() for name in ("alpha", "beta")]
        weight = block.mlp.weight.detach().double().numpy()
        maps.append(scale[1] * np.eye(len(weight)) + weight / scale[0])
    return maps


@torch.no_grad()
def _set_map(mlp, wanted):
    alpha, beta = (getattr(mlp, name, torch.ones(1)).item() for name in ("alpha", "beta"))
    mlp.weight.copy_(alpha * (wanted - beta * torch.eye(len(wanted))))


def _with_spread(model, spread, seed=0):
    """Gives every map random directions and singular values around 1 that are `spread` apart."""
    generator = torch.Generator().manual_seed(seed)
    width = model.config.width
    largest = np.log10(spread) / 2
    values = torch.diag(torch.logspace(-largest, largest, width).double())
    for block in model.transformer.h:
        if block.mlp is not None:
            noise = torch.randn(2, width, width, generator=generator).double()
            u, v = torch.linalg.qr(noise)[0]
            _set_map(block.mlp, u @ values @ v)
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "label", ["SM+ScFuFFN", "SM+FuFFN", "EReg(SM(t)+ScFuFFN)", "SM+ScFuFFN_i1"]
)
@settings(max_examples=5)
@given(
    num_layers=st.integers(1, 5),
    num_heads=st.integers(1, 3),
    spread=st.sampled_from([1.0, 2.0, 5.0, 30.0, 99.0]),
    seed=st.integers(0, 2**16),
)
def test_up_to_a_condition_of_100_the_logits_agree_to_1e_minus_5(
    family, label, num_layers, num_heads, spread, seed
):
    model = aero_network(
        label, family, seed=seed, num_layers=num_layers, num_heads=num_heads, head_dim=16, width=24
    )
    _with_spread(model, spread, seed)
    assume(len(model.config.layers_without_ffn) < num_layers)
    absorbed = aero.absorb_ffn(model)
    difference = relative_difference(
        logits_of(absorbed.model, tokens()), logits_of(model, tokens())
    )
    absorbing = [layer for layer in absorbed.layers if layer.outcome == "absorbed"]
    assert all(layer.new_condition <= 100 for layer in absorbing)
    # A kept FFN's new map may lie beyond the bound: it is multiplied by the frame before it.
    worst = max([100.0] + [layer.new_condition for layer in absorbed.layers])
    assert difference < 1e-5 * worst / 100
    assert absorbed.relative_error < 1e-5 * worst / 100
    outcomes = [layer.outcome for layer in absorbed.layers]
    kept = [layer for layer, outcome in enumerate(outcomes) if outcome == "kept"]
    blocks = absorbed.model.transformer.h
    assert [layer for layer, block in enumerate(blocks) if block.mlp is not None] == kept
    if spread == 1.0:  # orthogonal maps
        assert not kept


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fully_absorbed_network_has_no_ffn_work_and_costs_what_the_simulator_says(family):
    model = aero_network("SM+ScFuFFN", family, num_layers=3)
    absorbed = absorb_ffn(_with_spread(model, 2.0)).model
    spec = absorbed.config.spec
    assert spec.label == "SM+ScFuFFN_i3" and spec.flops().ffn == 0
    assert not spec.tied_embeddings
    assert sum(p.numel() for p in absorbed.parameters()) == spec.parameter_count(training=True)
    expected = mpc.simulate(model.config.spec, absorb_ffn=True)
    assert mpc.simulate(spec).comm_bytes == expected.comm_bytes
    assert absorbed.config.conversion_steps == [
        "absorb_ffn (exact): FFN of layers 0, 1, 2 went into attention, embeddings and head"
    ]


def test_the_condition_numbers_are_those_of_the_maps_and_of_their_products():
    model = _with_spread(aero_network("SM+ScFuFFN", num_layers=3), 3.0)
    report = absorb_ffn(model)
    maps = _maps(model)
    for layer, matrix in zip(report.layers, maps, strict=True):
        assert layer.map_condition == pytest.approx(np.linalg.cond(matrix), rel=1e-6)
    # One frame is the identity; the others are products of the maps between, or their inverses.
    conditions = [layer.new_condition for layer in report.layers]
    origin = next(i for i, condition in enumerate(conditions) if condition == pytest.approx(1.0))
    for frame in range(origin + 1, 3):
        product = np.linalg.multi_dot([np.eye(32), *maps[origin + 1 : frame + 1]])
        assert conditions[frame] == pytest.approx(np.linalg.cond(product), rel=1e-6)
    text = str(report)
    assert "3 of 3 FFNs absorbed at condition numbers up to 100" in text
    assert f"{report.relative_error:.1e}" in text


def test_the_identity_stands_where_the_worst_condition_number_is_smallest():
    # Of the frames of two maps, 2 and 3 times a direction: at either end the worst is 6, between
    # them 3. There the embeddings take in the first map and the head the second.
    model = aero_network("SM+ScFuFFN", num_layers=2)
    first, second = (torch.eye(32, dtype=torch.float64) for _ in range(2))
    first[0, 0], second[0, 0] = 2, 3
    for block, wanted in zip(model.transformer.h, (first, second), strict=True):
        _set_map(block.mlp, wanted)
    report = absorb_ffn(model)
    assert [layer.new_condition for layer in report.layers] == pytest.approx([1, 3])
    embeddings = model.transformer.wte.weight
    absorbed = report.model
    torch.testing.assert_close(absorbed.lm_head.weight, embeddings @ second.float())
    torch.testing.assert_close(absorbed.transformer.wte.weight, embeddings @ first.float())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", ["SM+ScFuFFN", "SM+FuFFN"])
def test_ffns_beyond_the_bound_stay_and_the_result_is_still_exact(label, family):
    model = aero_network(label, family, num_layers=5)
    _with_spread(model, 3.0)
    wall = torch.diag(torch.logspace(-2, 1, 32).double())
    _set_map(model.transformer.h[2].mlp, wall)
    report = absorb_ffn(model, max_condition=20.0)
    outcomes = [layer.outcome for layer in report.layers]
    assert outcomes == ["absorbed", "absorbed", "kept", "absorbed", "absorbed"]
    assert report.model.config.pruned_ffn_layers == [0, 1, 3, 4]
    assert report.relative_error < 1e-5
    assert relative_difference(logits_of(report.model, tokens()), logits_of(model, tokens())) < 1e-5
    if label == "SM+ScFuFFN":
        kept = report.model.transformer.h[2].mlp
        assert kept.alpha.item() == 1 and kept.beta.item() == 0


def test_beyond_100_the_error_is_measured_and_grows_with_the_condition():
    errors = []
    for spread in (2.0, 1e5):
        model = _with_spread(aero_network("SM+ScFuFFN", num_layers=2), spread)
        report = absorb_ffn(model, max_condition=1e12)
        assert {layer.outcome for layer in report.layers} == {"absorbed"}
        difference = relative_difference(
            logits_of(report.model, tokens()), logits_of(model, tokens())
        )
        assert difference < 20 * report.relative_error and report.relative_error < 20 * difference
        errors.append(report.relative_error)
    assert errors[0] < 1e-6 < 1e-5 < errors[1]


def test_in_float64_absorption_is_exact_to_rounding_at_any_condition():
    model = _with_spread(aero_network("SM+ScFuFFN", num_layers=4).double(), 100.0)
    report = absorb_ffn(model, max_condition=1e9)
    assert {layer.outcome for layer in report.layers} == {"absorbed"}
    # Two factors of at most 1e4 each side of the identity, times 1.1e-16.
    assert report.relative_error < 1e-9


@pytest.mark.parametrize("family", FAMILIES)
def test_foldable_norms_are_folded_first(family):
    model = aero_network("SM+FN+ScFuFFN", family)
    report = absorb_ffn(model)
    assert report.model.config.spec.norm == report.model.config.spec.final_norm == "none"
    assert relative_difference(logits_of(report.model, tokens()), logits_of(model, tokens())) < 1e-5
    assert report.relative_error < 1e-5


def test_generation_with_a_cache_is_that_of_the_original():
    model = aero_network("SM+ScFuFFN", num_layers=3)
    absorbed = absorb_ffn(model).model
    generated = [
        each.generate(tokens(2, 5), max_new_tokens=8, do_sample=False, pad_token_id=0)
        for each in (model, absorbed)
    ]
    assert torch.equal(*generated)


def test_an_absorbed_network_is_saved_and_loaded(tmp_path):
    model = _with_spread(aero_network("EReg(SM(t)+ScFuFFN)", num_layers=5), 15.0)
    absorbed = absorb_ffn(model, max_condition=20.0).model
    assert absorbed.config.pruned_ffn_layers is not None
    absorbed.save_pretrained(tmp_path)
    loaded = AeroForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.pruned_ffn_layers == absorbed.config.pruned_ffn_layers
    assert torch.equal(logits_of(loaded, tokens()), logits_of(absorbed, tokens()))


def diverged(name, value):
    def make():
        model = aero_network("SM+ScFuFFN")
        with torch.no_grad():
            getattr(model.transformer.h[1].mlp, name).fill_(value)
        return model

    return make


REFUSED = [
    (lambda: aero_network("SM+LN+ScFuFFN"), {}, ("SM+LN+ScFuFFN", "a LayerNorm, DyT or Derf")),
    (lambda: aero_network("SM+Derf+FuFFN"), {}, ("SM+Derf+FuFFN", "a LayerNorm, DyT or Derf")),
    (lambda: aero_network("SM+ScFuFFN", final_norm="layer"), {}, ("SM+ScFuFFN", "a LayerNorm")),
    (gpt2, {}, ("has a LayerNorm",)),
    (lambda: aero_network("SM+ScFFN"), {}, ("two layers", "fuse_ffn")),
    (lambda: aero_network("SOTA:SM+ScFuFFN", final_norm="none"), {}, ("shaped attention",)),
    (lambda: aero_network("SM+FN+ScFuFFN+S4"), {}, ("SM+FN+ScFuFFN+S4", "a convolution", "(S)")),
    (lambda: aero_network("SM+ScFuFFN+C4"), {}, ("SM+ScFuFFN+C4", "a convolution", "leave")),
    (lambda: aero_network("SM+ScFuFFN_i2"), {}, ("no FFN left",)),
    (diverged("weight", torch.nan), {}, ("FFN of layer 1", "not finite", "before")),
    (diverged("alpha", 0.0), {}, ("FFN of layer 1", "not finite", "before")),
    (lambda: aero_network("SM+ScFuFFN"), {"max_condition": 0.5}, ("max_condition", "got 0.5")),
    (lambda: aero_network("SM+ScFuFFN"), {"max_condition": torch.nan}, ("max_cond", "got nan")),
]  # fmt: skip


@pytest.mark.parametrize(("make", "options", "named"), REFUSED)
def test_what_cannot_be_absorbed_is_refused_with_what_to_do(make, options, named):
    assert_refused(lambda: absorb_ffn(make(), **options), "absorb_ffn: ", *named)


def test_a_singular_map_stays():
    model = aero_network("SM+ScFuFFN", num_layers=3)
    _set_map(model.transformer.h[1].mlp, torch.diag(torch.arange(32) % 2).double())
    report = absorb_ffn(model)
    assert [layer.outcome for layer in report.layers] == ["absorbed", "kept", "absorbed"]
    assert report.relative_error < 1e-5


def test_training_mode_and_weights_of_the_original_stay():
    model = AeroForCausalLM(AeroConfig.from_label("SM+ScFuFFN", model="tiny")).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = absorb_ffn(model)
    assert model.training and report.model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
