import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.python.refusals import assert_refused

from aero.conversion import (
    fold_layernorm,
    fold_norm,
    fuse_ffn,
    prune_ffn,
    remove_layernorm,
    replace_activation,
)

from .networks import (
    FAMILIES,
    SOURCES,
    aero_network,
    gpt2,
    logits_of,
    nano_gpt,
    pythia,
    relative_difference,
    tokens,
)

sizes = {
    "num_layers": st.integers(1, 4),
    "num_heads": st.integers(1, 3),
    "width": st.integers(2, 40),
    "hidden_width": st.integers(1, 90),
    "seed": st.integers(0, 2**16),
}


def _agree(changed, model):
    return relative_difference(logits_of(changed, tokens()), logits_of(model, tokens())) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", ["SM", "SM+LN", "SM+FN", "SM+ScFFN", "SM+LN+ScFFN_i1"])
@settings(max_examples=4)
@given(**sizes)
def test_fusing_is_exact(label, family, seed, **widths):
    model = aero_network(label, family, seed=seed, head_dim=8, **widths)
    fused = fuse_ffn(model)
    assert "fused" in fused.config.spec.ffn
    # W is rounded once from float64; the hidden layer's own roundings are gone.
    assert _agree(fused, model)


def test_fusing_multiplies_the_two_layers():
    model = aero_network("SM+ScFFN")
    mlp, fused = model.transformer.h[1].mlp, fuse_ffn(model).transformer.h[1].mlp
    w_in, w_out = (layer.weight.detach().double().numpy().T for layer in (mlp.c_fc, mlp.c_proj))
    bias = mlp.c_fc.bias.detach().double().numpy() @ w_out + mlp.c_proj.bias.detach().numpy()
    np.testing.assert_array_equal(fused.weight.detach().numpy(), (w_in @ w_out).astype("f4"))
    np.testing.assert_allclose(fused.bias.detach().numpy(), bias, rtol=1e-6)
    assert fused.alpha.item() == mlp.alpha.item() and fused.beta.item() == mlp.beta.item()


@pytest.mark.parametrize("normalized", ["WNFFN(qkvo+ffn)", "SNFFN"])
def test_fusing_multiplies_weight_norms_out(normalized):
    model = aero_network(f"SM+{normalized}").train()
    model(tokens())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fused = fuse_ffn(model)
    assert fused.config.spec.label == "SM+FuFFN"
    assert _agree(fused.eval(), model.eval())
    for name, value in model.state_dict().items():  # no power iteration while reading
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", ["SM+LN+G", "SM+LN+R_i1", "SM+LN+ScFuFFN", "SM(t)+LN"])
@settings(max_examples=4)
@given(**sizes)
def test_folding_gain_and_bias_of_layer_norms_is_exact(label, family, seed, **widths):
    model = aero_network(label, family, seed=seed, head_dim=8, **widths)
    folded = fold_layernorm(model)
    assert _agree(folded, model)
    for block in folded.transformer.h:
        for norm in (block.ln_1, block.ln_2):
            if norm is not None:
                assert norm.weight.eq(1).all() and norm.bias.eq(0).all()


@pytest.mark.parametrize("source", SOURCES)
def test_folding_serves_other_peoples_networks(source):
    model = SOURCES[source]()
    assert _agree(fold_layernorm(model), model)


class _Affine(torch.nn.Module):
    """The rest of a LayerNorm without centring and division."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x):
        return x * self.weight + self.bias


@pytest.mark.parametrize(
    "make",
    [
        pythia,
        lambda: pythia(use_parallel_residual=False),
        lambda: gpt2(tie_word_embeddings=False),
        lambda: aero_network("SM+LN+ScFFN", tied_embeddings=False),
        lambda: aero_network("SM+LN+R_i1", tied_embeddings=False),
    ],
)
def test_removing_a_layer_norm_keeps_its_gain_and_bias_and_nothing_else(make):
    model = make()
    removed = remove_layernorm(model)
    assert removed.config.spec.norm == removed.config.spec.final_norm == "none"
    assert removed.config.conversion_steps[-1].startswith("remove_layernorm (inexact): centring")
    for path, module in list(model.named_modules()):
        if isinstance(module, torch.nn.LayerNorm):
            parent, _, name = path.rpartition(".")
            parent = model.get_submodule(parent)
            # A block of ours asks for the kind of its norm: a foldable one is applied as it stands.
            setattr(parent, name, _Affine(module))
    assert _agree(removed, model)


def test_a_tied_head_loses_the_last_gain_and_says_so():
    removed = remove_layernorm(gpt2())
    assert (
        "the final one's gain and bias are dropped (the head is tied)"
        in removed.config.conversion_steps[-1]
    )
    assert removed.lm_head.weight is removed.transformer.wte.weight


class _Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("activation", "function", "letter"),
    [("relu", F.relu, "+R"), ("identity", lambda x: x, ""), ("gelu", None, "+G")],
)
def test_another_activation_takes_the_place_of_the_old_one(source, activation, function, letter):
    model = SOURCES[source]()
    changed = replace_activation(model, activation)
    assert changed.config.spec.label == f"SM+LN{letter}"
    if function is None:
        assert _agree(changed, model)
        return
    for module in model.modules():
        if hasattr(module, "act"):
            module.act = _Function(function)
        if hasattr(module, "function"):
            module.function = function
    assert _agree(changed, model)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("norm", ["", "+LN"])
@pytest.mark.parametrize("slopes", ["layer", "global"])
def test_learned_slopes_go_with_their_activation(family, norm, slopes):
    model = aero_network(f"SM{norm}+LR({slopes})", family)
    changed = replace_activation(model, "relu")
    assert changed.config.spec.label == f"SM{norm}+R"
    learned = [p for n, p in model.named_parameters() if n.endswith("negative_slope")]
    assert len(learned) == (1 if slopes == "global" else model.config.spec.num_layers)
    for slope in learned:
        torch.nn.init.zeros_(slope)  # which makes a ReLU of it
    assert _agree(changed, model)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", ["SM+LN+G", "SM+ScFuFFN", "SM+LR(global)", "SOTA:SM+FN+R"])
@settings(max_examples=4)
@given(pruned=st.sets(st.integers(0, 3), min_size=1))
def test_a_pruned_ffn_adds_nothing_and_scales_nothing(family, label, pruned):
    is_shaped = label.startswith("SOTA")
    options = {"parallel_residual": True} if is_shaped else {}
    model = aero_network(label, family, num_layers=4, **options)
    changed = prune_ffn(model, layers=pruned)
    assert changed.config.layers_without_ffn == sorted(pruned)
    assert changed.config.num_pruned_ffns == len(pruned)
    count = sum(parameter.numel() for parameter in changed.parameters())
    assert count == changed.config.spec.parameter_count(training=True)
    with torch.no_grad():
        for layer in pruned:  # the same by hand: an FFN that returns zeros, unscaled
            block = model.transformer.h[layer]
            if block.gain is not None:
                block.gain.zero_()
            output = getattr(block.mlp, "c_proj", block.mlp)
            output.weight.zero_()
            output.bias.zero_()
            if hasattr(block.mlp, "beta"):
                block.mlp.beta.fill_(1)
    assert _agree(changed, model)


def test_the_deepest_are_counted_with_those_already_gone():
    model = prune_ffn(aero_network("SM+R", num_layers=5), layers=[1, 4])
    assert model.config.pruned_ffn_layers == [1, 4]
    assert prune_ffn(model, deepest=3).config.layers_without_ffn == [1, 3, 4]
    assert prune_ffn(model, deepest=5).config.pruned_ffn_layers is None
    assert prune_ffn(nano_gpt(), deepest=1).config.spec.label == "SM+LN+G_i1"


def fold_without_a_gain():
    model = aero_network("SOTA:SM+FN+R")
    with torch.no_grad():
        model.transformer.h[1].ln_1.weight[3] = 0
    fold_norm(model)


def removed(label):
    return lambda: remove_layernorm(aero_network(label))


def folded(label):
    return lambda: fold_layernorm(aero_network(label))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: replace_activation(gpt2(), "silu"), ("'relu', 'gelu' or 'identity'", "'silu'")),
        (
            lambda: replace_activation(aero_network("SM+ScFuFFN"), "relu"),
            ("linear by definition", "replace the activation before"),
        ),
        (lambda: fuse_ffn(gpt2()), ("call replace_activation", "have an activation (gelu)")),
        (lambda: fuse_ffn(aero_network("SM+ScFuFFN")), ("are fused already",)),
        (lambda: prune_ffn(gpt2()), ("either deepest=K or layers",)),
        (lambda: prune_ffn(gpt2(), deepest=1, layers=[0]), ("either deepest=K or layers",)),
        (lambda: prune_ffn(gpt2(), deepest=4), ("number of layers, 3", "got 4")),
        (lambda: prune_ffn(gpt2(), layers=[3]), ("[0, 1, 2]", "got 3")),
        (lambda: prune_ffn(gpt2(), layers=[1, 1]), ("layers", "distinct")),
        (removed("SM+R"), ("has no LayerNorm",)),
        (folded("SM+R"), ("has no LayerNorm in its blocks",)),
        (folded("SOTA:SM+LN+R"), ("shaped attention, whose values",)),
        (removed("SOTA:SM+LN+R"), ("train such a network again",)),
        *(
            (lambda label=label: fold_norm(aero_network(label)), (f"{label} has no foldable norm",))
            for label in ("SM+LN+G", "SOTA:SM+LN+R")
        ),
        (fold_without_a_gain, ("gain of h.1.ln_1", "small number", "zero")),
    ],
)
def test_wrong_use_is_refused_with_what_to_do(change, named):
    assert_refused(change, *named)


@pytest.mark.parametrize(
    "label",
    ["SOTA:SM+FN+R", "SOTA:SM+FN(scalar)+ScFuFFN", "SOTA:SM(t)+FN+LR(layer)_i1",
     "SOTA:SM+FN+WNFFN(qk+ffn)"],
)  # fmt: skip
@settings(max_examples=5)
@given(
    final_norm=st.sampled_from(["none", "layer", "foldable"]),
    tied=st.booleans(),
    num_layers=st.integers(1, 4),
    seed=st.integers(0, 2**16),
)
def test_norms_before_shaped_attention_fold_exactly(label, final_norm, tied, num_layers, seed):
    model = aero_network(
        label, seed=seed, final_norm=final_norm, tied_embeddings=tied, num_layers=num_layers
    )
    folded = fold_norm(model)
    assert folded.config.spec.norm == "none"
    # A diagonal change of scale adds one rounding per weight and layer.
    assert _agree(folded, model)
