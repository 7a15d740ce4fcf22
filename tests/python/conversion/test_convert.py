import itertools
import warnings

import pytest
import torch
from tests.python.refusals import assert_refused

import aero
from aero import mpc
from aero.conversion import convert, fold_layernorm
from aero.conversion.plan import ConversionPlan
from aero.models import AeroForCausalLM

from .networks import (
    SOURCES,
    aero_network,
    gpt2,
    logits_of,
    nano_gpt,
    pythia,
    relative_difference,
    tokens,
)

LABELS = [
    "SM+LN+G",
    "SM+LN+R",
    "SM+LN+ScFFN",
    "SM+LN+FuFFN",
    "SM+LN+ScFuFFN_i2",
    "SM+LR(layer)",
    "SM+LR(global)_i3",
    "SM",
    "SM+WNFFN(qk+ffn)",
    "SM+SNFFN(qkvo+ffn)",
    "SM+ScFuFFN_i1",
    "SM+FN+R",
    "SM+FN(scalar)+ScFuFFN",
    "SM(t:head)+LN+G",
    "EReg(SM(t)+ScFuFFN_i1)",
]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("label", LABELS)
def test_a_plan_says_exactly_what_the_network_is_and_costs(source, label):
    model = SOURCES[source]()
    plan = convert(model, label, dry_run=True)
    network = convert(model, label)
    assert isinstance(plan, ConversionPlan) and isinstance(network, AeroForCausalLM)
    spec, size = network.config.spec, plan.sizes[-1]
    assert spec.label == size.label == label
    assert spec == plan.after.spec
    assert sum(parameter.numel() for parameter in network.parameters()) == size.parameters
    assert spec.flops().total == size.flops
    assert str(spec.nonlinear_operations()) == size.nonlinear_operations
    assert mpc.simulate(spec).comm_bytes == size.private_bytes
    assert network.config.conversion_steps == ([str(step) for step in plan.steps] or None)
    text = str(plan)
    assert repr(plan) == text
    for step, each in zip(plan.steps, plan.sizes[1:], strict=True):
        assert str(step) in text
        assert f"{each.parameters:,}" in text and f"{each.private_bytes / 1e9:.3g}" in text
    assert network(tokens()).logits.isfinite().all()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "label",
    ["SM+LN+G", "EReg(SM+LN+G)", "SM(t)+LN+G", "SM(t:scalar)+LN+G", "EReg(SM(t:head)+LN+G)"],
)
def test_exact_conversions_keep_the_logits(source, label):
    model = SOURCES[source]()
    assert convert(model, label, dry_run=True).is_exact
    network = convert(model, label)
    # The products are the same; only the order of the roundings, 6e-8 each, differs.
    assert relative_difference(logits_of(network, tokens()), logits_of(model, tokens())) < 1e-5


@pytest.mark.parametrize("family", ["gpt2", "pythia"])
def test_every_step_called_exact_keeps_the_logits_and_the_others_change_them(family):
    """Over all pairs of labels that have a way from one to the other."""
    labels = ["SM+LN+G", "SM+LN", "SM+FN+R", "SM", "SM+WNFFN", "SM+ScFFN", "SM+ScFuFFN", "SM(t)+LN"]
    seen = {True: 0, False: 0}
    for before, after in itertools.product(labels, labels):
        model = aero_network(before, family)
        try:
            plan = convert(model, after, dry_run=True)
        except ValueError as error:
            assert str(error).startswith(("convert: ", "replace_activation: ", "fuse_ffn: "))
            continue
        difference = relative_difference(
            logits_of(convert(model, after), tokens()), logits_of(model, tokens())
        )
        assert (difference < 1e-5) == plan.is_exact, (before, after, difference)
        seen[plan.is_exact] += 1
    assert min(seen.values()) >= 10


def test_the_parts_of_a_conversion_give_the_same_as_the_whole():
    model = pythia()
    steps = aero.conversion
    network = steps.replace_activation(model, "identity")
    network = steps.remove_layernorm(network)
    network = steps.fuse_ffn(network)
    network = steps.prune_ffn(network, deepest=1)
    whole = convert(model, "SM+FuFFN_i1")
    assert network.config.spec == whole.config.spec
    for name, value in whole.state_dict().items():
        assert torch.equal(value, network.state_dict()[name]), name


def test_a_converted_network_is_saved_and_loaded_with_its_history(tmp_path):
    network = convert(gpt2(), "EReg(SM(t)+ScFuFFN_i1)", entropy_weight=1e-4)
    network.save_pretrained(tmp_path)
    loaded = AeroForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.conversion_steps == network.config.conversion_steps
    assert loaded.config.entropy_weight == 1e-4
    assert torch.equal(logits_of(loaded, tokens()), logits_of(network, tokens()))


def test_added_temperatures_start_as_asked():
    exact = convert(gpt2(), "SM(t)+LN+G")
    assert exact.transformer.h[0].attn.temperature.value.eq(1).all()
    plan = convert(gpt2(), "SM(t)+LN+G", temperature_init=0.1, dry_run=True)
    assert not plan.is_exact
    network = convert(
        gpt2(), "SM(t:head)+LN+G", temperature_init=0.1, temperature_parametrization="log"
    )
    torch.testing.assert_close(network.transformer.h[2].attn.temperature(), torch.full((3,), 0.1))


@pytest.mark.parametrize("parametrization", ["identity", "log"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SM(t:scalar)+LN+G", "SM(t:head)+LN+G"),
        ("SM(t:scalar)+LN+G", "SM(t)+LN+G"),
        ("SM(t:head)+LN+G", "SM(t)+LN+G"),
        ("SM(t:head)+LN+G", "SM+LN+G"),
        ("SM(t:scalar)+LN+G", "SM+LN+G"),
        ("SOTA:SM(t:head)+LN+G", "SOTA:SM+LN+G"),
    ],
)
def test_temperatures_become_finer_or_go_into_the_queries_exactly(before, after, parametrization):
    model = aero_network(before, temperature_parametrization=parametrization)
    network = convert(model, after)
    assert network.config.spec.label == after
    assert relative_difference(logits_of(network, tokens()), logits_of(model, tokens())) < 1e-5


def test_a_shorter_context_and_an_untied_head_are_exact():
    for model in (gpt2(), pythia(), aero_network("SM(t)+LN+G")):
        ids = tokens(length=7)
        network = convert(model, "SM(t)+LN+G", context_length=7, tied_embeddings=False)
        assert network.config.spec.context_length == 7
        assert network.lm_head.weight is not network.transformer.wte.weight
        assert relative_difference(logits_of(network, ids), logits_of(model, ids)) < 1e-5


def test_the_last_norm_stays_where_final_norm_says_so():
    network = convert(gpt2(), "SM+ScFuFFN", final_norm="layer")
    assert isinstance(network.transformer.ln_f, torch.nn.LayerNorm)
    torch.testing.assert_close(network.transformer.ln_f.weight, gpt2().transformer.ln_f.weight)
    # A label that keeps the blocks' norms leaves the last one alone too.
    assert convert(network, "SM+ScFuFFN_i1").config.spec.final_norm == "layer"
    plan = convert(network, "SM+ScFuFFN", final_norm="none", dry_run=True)
    assert [step.name for step in plan.steps] == ["remove_layernorm"]


def network(*label, **options):
    return lambda: aero_network(*label, **options)


REFUSED = [
    (gpt2, "SM+ScFuFFN_i4", {}, ("label", "_i3", "prunes more FFNs than the 3 layers")),
    (gpt2, "SM+LN+G", {"head_dim": 16}, ("head_dim", "the model's, 8", "cannot be 16")),
    (gpt2, "SM+LN+G", {"num_heads": 4}, ("num_heads", "the model's, 3", "cannot be 4")),
    (gpt2, "SM+LN+G", {"vocab_size": 5}, ("vocab_size", "the model's", "cannot be 5")),
    (gpt2, "SM+LN+G", {"entropy_wieght": 1}, ("'entropy_wieght'", "context_length, tied_emb")),
    (gpt2, "SM+LN+G", {"context_length": 21}, ("context_length", "1 to the network's 20", "21")),
    (pythia, "SM+LN+G", {"tied_embeddings": True}, ("head is a matrix of its own", "tie the")),
    (gpt2, "SOTA:SM+LN+G", {}, ("shaped attention", "train it again")),
    (network("SOTA:SM"), "SM", {}, ("shaped attention", "train it again")),
    (network("SM"), "SM+LN", {}, ("norms", "none can be added", "('none', 'none')")),
    (gpt2, "SM+DyT+G", {}, ("DyT and Derf are trained from scratch",)),
    (network("SM+Derf+G"), "SM+G", {}, ("DyT and Derf are trained from scratch",)),
    (network("SM+ScFuFFN"), "SM+ScFFN", {}, ("FFNs are fused", "cannot be undone")),
    (network("SM+ScFFN"), "SM", {}, ("FFNs are scaled", "cannot be undone")),
    (network("SM+ScFFN"), "SM+R", {}, ("linear by definition", "replace the activation")),
    (network("SM+R_i2"), "SM+R_i1", {}, ("from 2 (pruned already)", "to", "got 1")),
    (network("SM(t)"), "SM", {}, ("temperatures of SM(t)", "without", "'head_position'")),
    (network("SM(t)"), "SM(t:head)", {}, ("temperatures of SM(t)", "'head'", "'head_position'")),
    (network("SM(t:head)"), "SM(t:scalar)", {}, ("of SM(t:head)", "'scalar'", "of kind 'head'")),
    (
        network("SM(t)"), "SM(t)", {"temperature_parametrization": "log"},
        ("temperature_parametrization", "left out", "'identity'"),
    ),
    (gpt2, "SM+LN+G", {"entropy_weight": -1}, ("entropy_weight", "a number from 0", "got -1")),
    (lambda: "gpt2", "SM+LN+G", {}, ("torch module", "str")),
]  # fmt: skip


@pytest.mark.parametrize(("make", "label", "options", "named"), REFUSED)
@pytest.mark.parametrize("dry_run", [False, True])
def test_what_cannot_be_reached_is_refused(make, label, options, named, dry_run):
    assert_refused(lambda: convert(make(), label, dry_run=dry_run, **options), *named)


def test_convert_is_exported_lazily():
    assert aero.convert is convert
    assert aero.convert(nano_gpt(), "SM+LN+R", dry_run=True).source == "NanoGPT"


@pytest.mark.parametrize("step", ["convert", "dry run", "prune_ffn", "absorb_ffn"])
def test_a_network_in_the_middle_of_an_annealing_is_refused(step):
    model = aero.conversion.begin_annealing(aero_network("SM+LN+G"), "SM+FN+ScFuFFN")
    steps = {
        "convert": lambda: convert(model, "SM+FN+ScFuFFN_i1"),
        "dry run": lambda: convert(model, "SM+FN+ScFuFFN_i1", dry_run=True),
        "prune_ffn": lambda: aero.prune_ffn(model, deepest=1),
        "absorb_ffn": lambda: aero.absorb_ffn(model),
    }
    with pytest.raises(
        ValueError, match=r"being annealed into SM\+FN\+ScFuFFN; .* call finish_annealing"
    ):
        steps[step]()


def _with_other_dropout(model):
    model.transformer.h[1].attn.resid_dropout.p = 0.25
    return model


def _with_foreign_dropout(model):
    model.transformer.h[1].mlp.hidden_dropout = torch.nn.Dropout(0.25)
    return model


KEPT = {
    "gpt2": (lambda: gpt2(resid_pdrop=0.25, attn_pdrop=0.125, embd_pdrop=0.5), (0.25, 0.125, 0.5)),
    "pythia": (
        lambda: pythia(hidden_dropout=0.25, attention_dropout=0.125), (0.25, 0.125, 0.25),
    ),
    "nanogpt": (nano_gpt, (0.1, 0.0, 0.0)),
    "converted in place": (
        lambda: aero.convert(gpt2(resid_pdrop=0.25, attn_pdrop=0.125), "SM+LN+R", inplace=True),
        (0.25, 0.125, 0.0),
    ),
    "ours": (
        lambda: aero_network(
            "SM+LN+G", residual_dropout=0.25, attention_dropout=0.125, embedding_dropout=0.5
        ),
        (0.25, 0.125, 0.5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("make", KEPT)
@pytest.mark.parametrize("step", [lambda m: aero.convert(m, "SM+LN+ScFFN"), fold_layernorm])
def test_a_new_network_has_the_dropout_of_the_model_and_nothing_is_said(make, step):
    make, (residual, attention, embedding) = KEPT[make]
    model = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = step(model)
    blocks = network.transformer.blocks()
    assert {block.dropout for block in blocks} == {residual}
    assert {block.attn.attention_dropout for block in blocks} == {attention}
    assert network.transformer.drop.p == network.config.embedding_dropout == embedding
    planned = aero.convert(model, "SM+LN+ScFFN", dry_run=True).after
    for config in (network.config, planned):
        assert (config.residual_dropout, config.attention_dropout) == (residual, attention)
    ids = tokens(length=8)
    one, other = (network.train()(ids).logits for _ in range(2))
    assert not torch.equal(one, other)
    one, other = (network.eval()(ids).logits for _ in range(2))
    assert torch.equal(one, other)


def test_dropout_that_is_asked_for_takes_the_place_of_the_models():
    network = aero.convert(
        gpt2(resid_pdrop=0.25, attn_pdrop=0.25), "SM+LN+R", residual_dropout=0.0,
        attention_dropout=0.5,
    )  # fmt: skip
    assert (network.config.residual_dropout, network.config.attention_dropout) == (0.0, 0.5)
    with pytest.raises(ValueError, match="in place dropout stays the model's"):
        aero.convert(gpt2(), "SM+LN+R", inplace=True, attention_dropout=0.5)


@pytest.mark.parametrize("change", [_with_other_dropout, _with_foreign_dropout])
@pytest.mark.parametrize("step", [lambda m: aero.convert(m, "SM+LN+R"), fold_layernorm])
def test_dropout_that_the_new_network_cannot_have_is_said(change, step):
    with pytest.warns(UserWarning, match="drops nothing there") as said:
        network = step(change(gpt2()))
    assert "0.25" in str(said[0].message) and said[0].filename == __file__
    assert {block.dropout for block in network.transformer.blocks()} == {0.0}


@pytest.mark.parametrize(
    "step",
    [
        lambda: aero.convert(gpt2(resid_pdrop=0.25), "SM+LN+R", inplace=True),
        lambda: aero.convert(gpt2(resid_pdrop=0.25), "SM+LN+R", dry_run=True),
        lambda: aero.convert(gpt2(), "SM+LN+R"),
    ],
    ids=["kept", "planned", "none"],
)
def test_where_no_dropout_is_lost_nothing_is_said(step):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()
