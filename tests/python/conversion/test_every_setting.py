"""Each step's words, and all that a conversion has to hand on: fields, mode, dtype, generation."""

import pytest
import torch

from aero import mpc
from aero.conversion import (
    absorb_ffn,
    begin_annealing,
    convert,
    finish_annealing,
    fold_norm,
    fuse_ffn,
    prune_ffn,
    remove_layernorm,
    replace_activation,
)
from aero.models import AeroConfig
from aero.nn.annealed_modules import set_annealing_progress

from .networks import (
    aero_network,
    gpt2,
    logits_of,
    pythia,
    relative_difference,
    tokens,
)

GONE = "remove_layernorm (inexact): centring and division by the standard deviation are gone"
FOLDED = "fold_layernorm (exact): W = diag(g) W, c = b W + c"
FUSED = "fuse_ffn (exact): W = W_in W_out, b = b_in W_out + b_out"
SCALED = "scale_ffn (exact): alpha and beta, 1 at the start"
TO_LINEAR = "replace_activation (inexact): gelu becomes the identity"
BEGINS = "whose statistics start with training; the final one's bias is dropped"
FRACTION = "of the maximum at the start"
STEPS = [
    (
        "SM+LN+G",
        "EReg(SM(t)+ScFuFFN_i1)",
        {"context_length": 7, "tied_embeddings": False, "temperature_init": 0.5},
        [
            "shorten_context (exact): at most 7 tokens",
            "untie_head (exact): the head is a matrix of its own",
            TO_LINEAR,
            FOLDED,
            GONE,
            FUSED,
            SCALED,
            "prune_ffn (inexact): no FFN in layer 1",
            "add_temperature (inexact): one temperature per head and position, 0.5 at the start",
            f"regularize_entropy (exact): one entropy threshold per head, 0.5 {FRACTION}",
        ],
    ),
    ("SM+LN+G", "SM+LN+G", {"entropy_weight": 3.0}, []),
    ("SM+LN+G", "SM+LN+G", {"context_length": 32, "tied_embeddings": True}, []),
    ("SM+LN+G", "SM+LN+G", {"context_length": 1}, ["shorten_context (exact): at most 1 tokens"]),
    ("SM+LN+G_i1", "SM+LN+G_i2", {}, ["prune_ffn (inexact): no FFN in layer 0"]),
    ("SM+G", "SM+G_i2", {}, ["prune_ffn (inexact): no FFN in layers 0, 1"]),
    (
        "SM+LN+G",
        "SM+G",
        {},
        [FOLDED, f"{GONE}; the final one's gain and bias are dropped (the head is tied)"],
    ),
    (
        "SM+LN+G",
        "SM+FN+G",
        {},
        [
            FOLDED,
            f"replace_layernorm (inexact): LayerNorm becomes a foldable norm per channel, {BEGINS}",
        ],
    ),
    (
        "SM+LN+R",
        "SM+FN(scalar)+R",
        {"final_norm": "layer"},
        [
            FOLDED,
            "replace_layernorm (inexact): LayerNorm becomes a foldable norm per scalar, "
            "whose statistics start with training",
        ],
    ),
    ("SM+FN", "SM", {}, ["fold_norm (exact): W = diag(g / sqrt(v + eps)) W"]),
    ("SM(t:scalar)", "SM", {}, ["fold_temperature (exact): W_Q = W_Q / t"]),
    ("SM(t:scalar)", "SM(t:head)", {}, ["refine_temperature (exact): one temperature per head"]),
    (
        "SM(t:head)",
        "SM(t)",
        {},
        ["refine_temperature (exact): one temperature per head and position"],
    ),
    ("SM", "SM(t:scalar)", {}, ["add_temperature (exact): one temperature, 1.0 at the start"]),
    (
        "SM",
        "SM(t:head)",
        {"temperature_init": 2.0},
        ["add_temperature (inexact): one temperature per head, 2.0 at the start"],
    ),
    ("EReg(SM)", "SM", {}, ["regularize_entropy (exact): no entropy thresholds"]),
    (
        "SM",
        "EReg(SM)",
        {"threshold_init": 0.25},
        [f"regularize_entropy (exact): one entropy threshold per head, 0.25 {FRACTION}"],
    ),
    ("SM+LR(global)", "SM", {}, [
        "replace_activation (inexact): leaky relu global becomes the identity"
    ]),
    ("SM+WNFFN", "SM", {}, ["normalize_weight (exact): plain weights"]),
    ("SM+WNFFN", "SM+ScFFN", {}, [SCALED]),
    ("SM+WNFFN", "SM+FuFFN", {}, [FUSED]),
    ("SM+SNFFN", "SM+ScFFN", {}, [SCALED]),
    ("SM+SNFFN", "SM+ScFuFFN", {}, [FUSED, SCALED]),
    ("SM", "SM+ScFFN", {}, [SCALED]),
    ("SM+ScFFN", "SM+ScFuFFN", {}, [FUSED]),
    ("SM+FuFFN", "SM+ScFuFFN", {}, [SCALED]),
    ("SM+SNFFN", "SM+R", {}, ["replace_activation (inexact): the identity becomes relu"]),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "options", "steps"), STEPS)
def test_each_step_is_named_with_its_effect_and_is_exact_where_it_says_so(
    before, after, options, steps
):
    model = aero_network(before)
    plan = convert(model, after, dry_run=True, **options)
    assert [str(step) for step in plan.steps] == steps
    network = convert(model, after, **options)
    assert (network.config.conversion_steps or []) == steps
    ids = tokens(length=network.config.context_length)
    difference = relative_difference(logits_of(network, ids), logits_of(model, ids))
    assert (difference < 1e-5) == plan.is_exact == all("(exact)" in step for step in steps)


PLAN = """\
AeroForCausalLM SM+LN+G (L 2, d 32, H 2, T 32) to SM+LN+ScFFN

step                         parameters   GFLOPs  GB in private  nonlinear operations
as it is                         28,448  0.00177          0.155  SM:4xR^{32x32} LN:5xR^{32x32} G:2xR^{32x128}
replace_activation  INEXACT      28,448  0.00177          0.122  SM:4xR^{32x32} LN:5xR^{32x32}
scale_ffn           exact        28,452  0.00177          0.122  SM:4xR^{32x32} LN:5xR^{32x32}

- replace_activation (inexact): gelu becomes the identity
- scale_ffn (exact): alpha and beta, 1 at the start""".splitlines()  # noqa: E501


def test_a_plan_is_a_table_of_the_network_after_each_step():
    plan = convert(aero_network("SM+LN+G"), "SM+LN+ScFFN", dry_run=True)
    assert str(plan).splitlines() == PLAN
    assert (
        str(convert(aero_network("SM"), "SM", dry_run=True)).splitlines()[-1] == "- nothing to do"
    )
    for config, size in zip(
        (plan.before, *(step.config for step in plan.steps)), plan.sizes, strict=True
    ):
        assert size.private_bytes == mpc.simulate(config.spec).comm_bytes


TRAINING = {
    "entropy_weight": 0.25,
    "entropy_tokens": 77,
    "tolerance_margin": 0.2,
    "max_entropy": "log_visible",
    "entropy_reduction": "query_mean",
    "entropy_strengths": "learned",
    "entropy_thresholds": "shared",
    "threshold_init": 0.75,
    "temperature_init": 0.5,
    "temperature_parametrization": "log",
    "trainable_scales": "beta",
    "leaky_slope_init": 0.125,
    "norm_statistics": "synchronized",
    "initializer_range": 0.5,
    "position_start": "embeddings",
    "embedding_dropout": 0.0625,
    "residual_dropout": 0.125,
    "attention_dropout": 0.25,
}
OTHER = {
    "gelu_approximation": "none",
    "layer_norm_epsilon": 1e-3,
    "embedding_scale": 2.0,
    "use_cache": False,
    "pad_token_id": 3,
}


@pytest.mark.parametrize("label", ["SM+LN+G", "EReg(SM(t)+LN+G)", "EReg(SM+LN+R)"])
def test_every_field_of_training_arrives_and_no_other_field_changes(label):
    model = aero_network("SM+LN+G", **OTHER)
    before = model.config.to_dict()
    asked = convert(model, label, **TRAINING)
    assert model.config.to_dict() == before
    for name, value in {**OTHER, **TRAINING}.items():
        assert getattr(asked.config, name) == value, name
    kept = convert(asked, label)  # the network's own, where nothing is asked
    assert kept.config.to_dict() == asked.config.to_dict()


def test_temperatures_that_are_there_keep_the_start_they_had():
    for before in ("SM(t:scalar)+LN+G", "SM(t:head)+LN+G", "SM(t)+LN+G"):
        network = convert(aero_network(before, temperature_init=0.5), "SM(t)+LN+R")
        assert network.config.temperature_init == 0.5
    added = convert(aero_network("SM+LN+G", temperature_init=0.5), "SM(t)+LN+R")
    assert added.config.temperature_init == 1.0


def test_a_spectral_norm_is_that_of_the_weights_it_is_put_on():
    model = aero_network("SM")
    for block in convert(model, "SM+SNFFN").transformer.h:
        for layer in (block.mlp.c_fc, block.mlp.c_proj):
            # 15 turns of the power iteration leave some per cent at singular values this close.
            assert torch.linalg.matrix_norm(layer.weight, 2).item() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [False, True])
def test_every_conversion_keeps_mode_dtype_and_generation_and_leaves_its_model(dtype, training):
    norms, plain = aero_network("SM+FN+ScFFN"), aero_network("SM+LN+G")
    for model in (norms, plain):
        model.to(dtype).train(training)
        model.generation_config.max_new_tokens = 3
    annealed = begin_annealing(plain, "SM+ScFuFFN")
    set_annealing_progress(annealed, 1.0)
    changes = [
        (norms, fold_norm),
        (norms, fuse_ffn),
        (norms, lambda model: absorb_ffn(fuse_ffn(model)).model),
        (plain, remove_layernorm),
        (plain, lambda model: prune_ffn(model, layers=[0])),
        (plain, lambda model: replace_activation(model, "relu")),
        (plain, lambda model: begin_annealing(model, "SM+ScFuFFN")),
        (annealed, finish_annealing),
    ]
    for model, change in changes:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        configuration = model.config.to_dict()
        changed = change(model)
        assert changed.generation_config.max_new_tokens == 3
        changed.generation_config.max_new_tokens = 4
        assert model.generation_config.max_new_tokens == 3
        assert {p.dtype for p in changed.parameters()} == {dtype}
        assert {module.training for module in changed.modules()} == {training}
        assert {module.training for module in model.modules()} == {training}
        assert model.config.to_dict() == configuration
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name


def test_steps_leave_the_random_numbers_alone():
    model, random = aero_network("SM+LN+G"), torch.get_rng_state()
    absorb_ffn(convert(model, "EReg(SM(t)+ScFuFFN)"))
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("make", [gpt2, pythia])
def test_what_is_converted_in_place_keeps_its_mode(make, training):
    model = make().train(training)
    convert(model, "SM+FN+ScFuFFN", inplace=True)
    assert {module.training for module in model.modules()} == {training}


def test_an_aero_network_takes_in_place_all_that_a_new_one_has():
    asked = {"context_length": 7, "tied_embeddings": False, "entropy_strengths": "learned"}
    model, label = aero_network("SM+LN+G"), "EReg(SM+LN+G)"
    expected = convert(model, label, **asked)
    assert convert(model, label, inplace=True, **asked) is model
    assert model.config.to_dict() == expected.config.to_dict()
    assert model.state_dict().keys() == expected.state_dict().keys()
    convert(model, "SM+LN+G", inplace=True)
    assert "strength_bias" not in model.state_dict() and model.head_strengths() is None


@pytest.mark.parametrize("label", ["SM+XX", "SM_i"])
def test_a_label_that_is_none_is_refused_as_everywhere(label):
    with pytest.raises(ValueError) as expected:
        AeroConfig.from_label(label, model="tiny")
    with pytest.raises(ValueError) as error:
        convert(aero_network("SM"), label)
    assert str(error.value) == str(expected.value)


@pytest.mark.parametrize("label", ["SM+FN", "SM+FN(scalar)+ScFuFFN", "SOTA:SM+FN+R"])
def test_a_norm_of_a_stream_as_small_as_its_epsilon_folds_exactly(label):
    model = aero_network(label).double()
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean_square"):
            buffer.fill_(3e-6)
    folded = fold_norm(model)
    assert relative_difference(logits_of(folded, tokens()), logits_of(model, tokens())) < 1e-12


def test_a_channel_that_the_last_norm_blanks_stays_blank():
    model = gpt2(tie_word_embeddings=False)
    with torch.no_grad():
        model.transformer.ln_f.weight[3] = model.transformer.ln_f.bias[3] = 0.0
    removed = remove_layernorm(model)
    assert not removed.lm_head.weight[:, 3].any()
    assert logits_of(removed, tokens()).isfinite().all()
