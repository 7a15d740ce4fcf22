"""A network that was converted in place is saved as what it is, whoever saves it."""

import copy
import io
import pickle

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
)

import aero
from aero.conversion import convert
from aero.models import AeroForCausalLM, without_entropy_penalty

from .networks import HUGGING_FACE, gpt2, logits_of, nano_gpt, relative_difference, tokens

SOURCES = {**HUGGING_FACE, "nanogpt": nano_gpt}
LABELS = [
    "SM+LN+G", "SM+LN+R", "SM+LN", "SM(t)+LN+G", "SM+LN+G_i1", "SM+LN+ScFFN", "SM+FN+ScFuFFN",
    "SM+WNFFN(qkvo+ffn)", "SM+SNFFN(qk+ffn)", "SM+SNFFN(qk)", "SM+LR(global)_i1",
    "SM+LN+LR(layer)", "EReg(SM(t)+ScFuFFN_i1)", "EReg(SM+LN+R)",
]  # fmt: skip


def _trained_in_place(make, label, **options):
    model = convert(make(), label, inplace=True, **options)
    for parameter in model.parameters():
        with torch.no_grad():  # as a training step would
            parameter.add_(0.01 * torch.sin(torch.arange(parameter.numel())).view_as(parameter))
    return model


def _agree(one, other):
    return relative_difference(logits_of(one, tokens()), logits_of(other, tokens())) < 1e-5


@pytest.mark.parametrize("source", HUGGING_FACE)
@pytest.mark.parametrize("label", LABELS)
def test_it_is_loaded_as_itself_or_not_at_all(source, label, tmp_path):
    model = _trained_in_place(HUGGING_FACE[source], label)
    model.save_pretrained(tmp_path)
    for loader in (AutoModelForCausalLM, AeroForCausalLM):
        loaded = loader.from_pretrained(tmp_path)
        assert isinstance(loaded, AeroForCausalLM) and loaded.config.spec.label == label
        assert _agree(loaded, model)


# GPT-NeoX does the same, but makes its default network first: 80 GB.
def test_the_class_of_the_host_does_not_load_it(tmp_path):
    _trained_in_place(gpt2, "SM+LN+R").save_pretrained(tmp_path)
    with pytest.raises((RuntimeError, ValueError)):
        GPT2LMHeadModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("label", LABELS)
def test_its_state_dict_goes_into_the_network_before_only_where_that_is_the_same(source, label):
    if source == "nanogpt" and label.startswith("EReg"):
        label = label.removeprefix("EReg(").removesuffix(")")
    model, plain = _trained_in_place(SOURCES[source], label), SOURCES[source]()
    try:
        plain.load_state_dict(model.state_dict())
    except RuntimeError:
        # A changed Pythia has other names, so that all of it is refused.
        assert label != "SM+LN+G" or source.startswith("pythia")
        return
    assert _agree(plain, model)


@pytest.mark.parametrize("source", ["gpt2", "pythia"])
@pytest.mark.parametrize(
    "label", ["SM+LN+R", "SM+SNFFN(qk+ffn)", "SM+LR(global)_i1", "EReg(SM(t)+FN+ScFuFFN_i1)"]
)
def test_a_checkpoint_of_the_stock_trainer_is_loaded_and_resumed(source, label, tmp_path):
    data = [{"input_ids": row, "labels": row} for row in tokens(8)]

    def trainer(steps):
        arguments = TrainingArguments(
            str(tmp_path), max_steps=steps, learning_rate=1e-2, report_to=[], use_cpu=True,
            save_steps=2, per_device_train_batch_size=4, disable_tqdm=True,
            lr_scheduler_type="constant",
        )  # fmt: skip
        model = convert(HUGGING_FACE[source](), label, inplace=True)
        return Trainer(model, arguments, train_dataset=data)

    through = trainer(4)
    through.train()
    resumed = trainer(4)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, value in through.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    assert _agree(
        AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-4"), through.model.eval()
    )


@pytest.mark.parametrize("source", HUGGING_FACE)
@pytest.mark.parametrize("label", LABELS)
def test_its_own_saved_weights_go_back_into_it(source, label):
    model, again = (_trained_in_place(HUGGING_FACE[source], label) for _ in range(2))
    state = convert(model, label).state_dict()
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.mul_(0.5)
    again.load_state_dict(state)
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("way", ["pickle", "torch.save", "copy"])
def test_it_is_pickled_and_copied_whole(source, way, tmp_path):
    model = _trained_in_place(SOURCES[source], "SM(t)+LN+R")
    model(tokens())
    if way == "pickle":
        again = pickle.loads(pickle.dumps(model))
    elif way == "torch.save":
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        again = torch.load(buffer, weights_only=False)
    else:
        again = copy.deepcopy(model)
    assert type(again) is type(model) and _agree(again, model)
    if source in HUGGING_FACE:
        found, expected = (aero.entropies(each, tokens()) for each in (again, model))
        torch.testing.assert_close(found.layers, expected.layers)
        again.save_pretrained(tmp_path)
        assert _agree(AeroForCausalLM.from_pretrained(tmp_path), model)


PENALTY = {
    "entropy_weight": 0.5, "entropy_tokens": 77, "tolerance_margin": 0.05, "threshold_init": 0.7,
}  # fmt: skip


@pytest.mark.parametrize("source", ["gpt2", "pythia"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"entropy_reduction": "query_mean"},
        {"max_entropy": "log_visible"},
        {"entropy_strengths": "learned"},
    ],
)
def test_the_penalty_of_a_label_is_in_the_loss_of_the_host(source, options, tmp_path):
    label, options = "EReg(SM(t)+FN+R)", {**PENALTY, **options}
    network = convert(HUGGING_FACE[source](), label, **options).train()
    model = convert(HUGGING_FACE[source](), label, inplace=True, **options).train()
    ids = tokens(length=13)  # shorter than the context
    outputs = [each(ids, labels=ids) for each in (network, model)]
    assert outputs[0].loss > 1.01 * outputs[0].lm_loss
    torch.testing.assert_close(outputs[1].loss, outputs[0].loss, rtol=1e-5, atol=1e-6)
    for each in outputs:
        each.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    gradients = [block.attn.entropy_threshold.grad for block in network.transformer.h]
    torch.testing.assert_close(model.entropy_penalty.threshold_bias.grad, torch.stack(gradients))
    with torch.no_grad():
        for parameter in model.entropy_penalty.parameters():
            parameter.add_(torch.linspace(0, 0.2, 9).view(3, 3))
    model.save_pretrained(tmp_path)
    loaded = AeroForCausalLM.from_pretrained(tmp_path)
    for name, value in options.items():
        assert getattr(loaded.config, name) == value or name == "threshold_init", name
    torch.testing.assert_close(
        torch.from_numpy(loaded.head_thresholds()), model.entropy_penalty.threshold_bias.data
    )
    strengths = model.entropy_penalty.strength_bias
    assert (loaded.strength_bias is None) == (strengths is None)
    if strengths is not None:
        assert torch.equal(loaded.strength_bias, strengths)
    with torch.no_grad():
        losses = [each.train()(ids, labels=ids).loss for each in (loaded, model)]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)


def test_a_penalty_that_was_put_on_by_hand_is_saved_with_the_network(tmp_path):
    model = aero.with_entropy_penalty(
        convert(gpt2(), "SM+FN+R", inplace=True), weight=0.25, context_length=20, threshold=0.7
    )
    model.save_pretrained(tmp_path)
    loaded = AeroForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.spec.label == "EReg(SM+FN+R)" and loaded.config.entropy_weight == 0.25
    losses = [each.train()(tokens(), labels=tokens()).loss for each in (loaded, model)]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)
    without_entropy_penalty(model).save_pretrained(tmp_path)
    assert AeroForCausalLM.from_pretrained(tmp_path).config.spec.label == "SM+FN+R"


def test_a_penalty_without_a_context_of_its_own_is_saved_with_a_warning(tmp_path):
    model = aero.with_entropy_penalty(convert(gpt2(), "SM+FN+R", inplace=True))
    with pytest.warns(UserWarning, match="context_length"):
        model.save_pretrained(tmp_path)


def test_a_penalty_is_taken_along_and_not_dropped():
    model = aero.with_entropy_penalty(gpt2(), threshold=0.7, weight=0.25, context_length=20)
    network = convert(model, "EReg(SM+LN+R)")
    assert network.config.entropy_weight == 0.25 and network.head_thresholds().min() > 0.69
    with pytest.raises(ValueError, match=r"EReg\(SM\+LN\+R\).*without_entropy_penalty"):
        convert(model, "SM+LN+R", inplace=True)
    convert(model, "EReg(SM+LN+R)", inplace=True)
    assert model.entropy_penalty.threshold_bias.min() > 0.69
    assert model.entropy_penalty.weight == 0.25
    convert(without_entropy_penalty(model), "SM+LN+R_i1", inplace=True)
    assert not hasattr(model.train()(tokens(), labels=tokens()), "entropy_loss")


def test_a_label_whose_penalty_would_be_in_no_loss_is_refused():
    model = nano_gpt()
    before = repr(model)
    with pytest.raises(ValueError, match=r"EntropyPenalty.*\.term\("):
        convert(model, "EReg(SM+LN+R)", inplace=True)
    assert repr(model) == before
