import pytest
import torch
from tests.python.refusals import assert_refused
from transformers import Trainer, TrainingArguments

from aero.conversion import (
    begin_annealing,
    convert,
    finish_annealing,
    fuse_ffn,
    prune_ffn,
    remove_layernorm,
    replace_activation,
)
from aero.models import AeroConfig, AeroForCausalLM
from aero.nn.annealed_modules import annealing_progress, set_annealing_progress
from aero.train import AnnealingCallback

from .networks import aero_network
from .networks import far_from_its_start as network

PYTHIA = {
    "family": "pythia",
    "rotary_fraction": 0.25,
    "parallel_residual": True,
    "tied_embeddings": False,
}
TARGETS = [
    "SM+FN+ScFuFFN",
    "SM+FN(scalar)+R",
    "SM+ScFuFFN",
    "SM+ScFFN",
    "SM",
    "SM+R",
    "SM+FuFFN",
    "SM+LN+FuFFN",
    "EReg(SM(t)+ScFuFFN_i1)",
    "EReg(SM(t)+FN+ScFuFFN)",
    "SM+ScFuFFN_i2",
]


def tokens():
    return torch.randint(0, 256, (4, 32), generator=torch.Generator().manual_seed(2))


def train_a_little(model, progress):
    model.train()
    set_annealing_progress(model, progress)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        model(tokens(), labels=tokens()).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.mark.parametrize("family", [{}, PYTHIA], ids=["gpt2", "pythia"])
@pytest.mark.parametrize("source", ["SM+LN+G", "SM+LN+R", "SM+LN"])
@pytest.mark.parametrize("label", TARGETS)
def test_annealing_starts_with_one_network_and_ends_with_the_other(label, source, family):
    trained = network(source, **family)
    state = {name: value.clone() for name, value in trained.state_dict().items()}
    model = begin_annealing(trained, label)
    assert model.config.spec.label == label and not model.training
    assert torch.equal(model(tokens()).logits, trained(tokens()).logits)
    train_a_little(model, 0.5)
    train_a_little(model, 1.0)
    finished = finish_annealing(model)
    expected = model(tokens()).logits
    # Fused products and folded scales are rounded once, from float64.
    torch.testing.assert_close(
        finished(tokens()).logits, expected, rtol=0, atol=1e-5 * expected.abs().max().item()
    )
    plain = AeroForCausalLM(AeroConfig.from_label(label, model="tiny", **family))
    assert finished.config.spec == plain.config.spec and finished.config.annealed_from is None
    assert finished.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(value, state[name]) for name, value in trained.state_dict().items())


def test_a_network_without_norm_is_reached_through_foldable_norms():
    model = begin_annealing(network("SM+LN+G"), "SM+ScFuFFN")
    block = model.transformer.h[1]
    assert all(norm.target.kind == "channel" for norm in (block.ln_1, block.ln_2))
    # A tied head could not take a scale in.
    assert model.transformer.ln_f.target is None


def test_a_label_counts_the_ffns_of_the_network_itself():
    sizes = {"num_layers": 13, "num_heads": 1, "head_dim": 4, "width": 4, "hidden_width": 4}
    assert begin_annealing(network("SM+LN+G", **sizes), "SM_i13").config.num_pruned_ffns == 13
    with pytest.raises(ValueError, match=r"num_pruned_ffns .*2, got 3"):
        begin_annealing(network("SM+LN+G"), "SM_i3")


def test_only_what_differs_is_annealed():
    model = begin_annealing(network("SM+LN+G"), "SM+LN+R")
    assert isinstance(model.transformer.h[0].ln_1, torch.nn.LayerNorm)
    model = begin_annealing(network("SM+FN+G"), "SM+FN+ScFuFFN")
    assert type(model.transformer.ln_f).__name__ == "FoldableNorm"


@pytest.mark.parametrize("progress", [0.0, 0.4, 1.0])
def test_a_network_on_its_way_saves_and_loads(progress, tmp_path):
    model = train_a_little(begin_annealing(network("SM+LN+G"), "EReg(SM(t)+ScFuFFN)"), progress)
    model.save_pretrained(tmp_path)
    loaded = AeroForCausalLM.from_pretrained(tmp_path).eval()
    assert annealing_progress(loaded) == pytest.approx(progress)
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)


def test_a_network_on_its_way_compiles_and_recomputes():
    model = begin_annealing(network("SM+LN+G"), "SM+FN+ScFFN_i1").train()
    set_annealing_progress(model, 0.5)
    ids = tokens()

    def gradients(run):
        model.zero_grad()
        run(ids, labels=ids).loss.backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}

    expected = gradients(model)
    found = [gradients(torch.compile(model, backend="eager", fullgraph=True))]
    model.gradient_checkpointing_enable()
    found.append(gradients(model))
    for values in found:
        for name, value in expected.items():
            torch.testing.assert_close(values[name], value, msg=name)


ROWS = [{"input_ids": row, "labels": row} for row in tokens()]


def training_arguments(folder, **changes):
    fixed = {"use_cpu": True, "save_strategy": "no", "report_to": [], "disable_tqdm": True}
    return TrainingArguments(folder, per_device_train_batch_size=2, **fixed, **changes)


@pytest.mark.parametrize(
    "step",
    [
        lambda model: replace_activation(model, "relu"),
        remove_layernorm,
        lambda model: fuse_ffn(replace_activation(model, "identity")),
        lambda model: prune_ffn(model, deepest=1),
        lambda model: convert(model, "EReg(SM(t)+ScFuFFN_i1)", entropy_weight=1e-4),
    ],
)
def test_any_trainer_goes_on_after_a_step(step, tmp_path):
    model = step(network("SM+LN+G"))
    before = model(tokens(), labels=tokens()).lm_loss.item()
    arguments = training_arguments(tmp_path, max_steps=6, learning_rate=1e-2)
    Trainer(model, arguments, train_dataset=ROWS).train()
    assert model.eval()(tokens(), labels=tokens()).lm_loss.item() < before


def test_any_trainer_anneals(tmp_path):
    seen = []

    class Watching(Trainer):
        def compute_loss(self, model, *arguments, **options):
            seen.append(annealing_progress(model))
            return super().compute_loss(model, *arguments, **options)

    arguments = training_arguments(tmp_path, max_steps=8)
    model = begin_annealing(network("SM+LN+G"), "SM+ScFuFFN")
    callback = AnnealingCallback("linear", start_fraction=0.25, end_fraction=0.75)
    Watching(model, arguments, train_dataset=ROWS, callbacks=[callback]).train()
    assert seen == [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert finish_annealing(model).config.spec.label == "SM+ScFuFFN"


def way(source, label):
    return lambda: begin_annealing(
        AeroForCausalLM(AeroConfig.from_label(source, model="tiny")), label
    )


def halfway():
    model = begin_annealing(network("SM+LN+G"), "SM+ScFuFFN")
    set_annealing_progress(model, 0.5)
    return model


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (way("SM+LN+G", "SOTA:SM+ScFFN"), ("shaped attention cannot be annealed",)),
        (way("SM+LN+G", "SM+LR(layer)"), ("cut it", "got gelu and leaky_relu_layer")),
        (way("SM+ScFuFFN", "SM+FN+ScFuFFN"), ("FFN", "from gelu, relu, linear")),
        (way("SM+G", "SM+FN+G"), ("a norm", "from layer to foldable or none", "none to foldable")),
        (way("SM+LN+G", "SM+DyT+G"), ("from layer to foldable or none", "layer to dynamic_tanh")),
        (way("SM+LN+G_i1", "SM+LN+R"), ("all its FFNs",)),
        (lambda: finish_annealing(halfway()), ("train it to the end", "only 50% of its way")),
        (lambda: convert(halfway(), "SM"), ("train it to the end", "annealed into SM+ScFuFFN")),
        (lambda: begin_annealing(halfway(), "SM"), ("train it to the end", "into SM+ScFuFFN")),
        (lambda: finish_annealing(network("SM")), ("is not being annealed",)),
    ],
)
def test_a_way_that_does_not_exist_or_is_not_gone_is_refused(call, named):
    assert_refused(call, *named)


HISTORY = "begin_annealing (inexact): SM+LN+R becomes SM+ScFuFFN_i1"


def test_an_annealing_keeps_history_settings_and_discrepancies():
    trained = replace_activation(aero_network("SM+LN+G"), "relu")
    model = begin_annealing(trained, "SM+ScFuFFN_i1", final_norm="foldable", entropy_weight=0.25)
    first = "replace_activation (inexact): gelu becomes relu"
    assert model.config.conversion_steps == [first, HISTORY]
    assert trained.config.conversion_steps == [first]
    assert model.config.entropy_weight == 0.25 and model.config.final_norm == "foldable"
    assert begin_annealing(aero_network("SM+LN+R"), "SM+ScFuFFN_i1").config.conversion_steps == [
        HISTORY
    ]
    set_annealing_progress(model, 1.0)
    with torch.no_grad():
        model.transformer.ln_f.target.discrepancy.fill_(0.375)
    finished = finish_annealing(model)
    assert finished.config.final_norm == "foldable"
    assert finished.transformer.ln_f.discrepancy.item() == 0.375


def test_temperatures_start_at_1_in_an_annealing_unless_told():
    for asked, start in [({}, 1.0), ({"temperature_init": 0.5}, 0.5)]:
        model = begin_annealing(aero_network("SM+LN+G"), "SM(t)+LN+R", **asked)
        assert model.transformer.h[1].attn.temperature.value.eq(start).all()


def test_an_annealing_stays_on_the_device_of_its_network():
    network = begin_annealing(aero_network("SM+LN+G").to("meta"), "SM+ScFuFFN")
    assert {value.device.type for value in network.state_dict().values()} == {"meta"}
