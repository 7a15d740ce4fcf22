"""A batch in which no token counts adds exactly 0 to the loss and to every gradient."""

import copy
import itertools

import pytest
import torch
from transformers import Trainer, TrainingArguments

import aero
from aero.train.entropy_callback import LossLogCallback

from .labels import tiny
from .stock_models import stock_model

IDS = torch.arange(1, 13).reshape(2, 6)
NONE = torch.full_like(IDS, -100)
CALLS = {
    "labels of -100": (IDS, {"labels": NONE}),
    "labels of -100 in a step of none": (
        IDS, {"labels": NONE, "num_items_in_batch": torch.tensor(0)},
    ),
    "a step of no tokens": (IDS, {"labels": IDS, "num_items_in_batch": 0}),
    "sequences of one token": (IDS[:, :1], {"labels": IDS[:, :1]}),
    "padding alone": (IDS, {"labels": NONE, "attention_mask": torch.zeros_like(IDS)}),
}  # fmt: skip
RULES = [*itertools.product(("position_sum", "query_mean"), ("log_context", "log_visible"))]
PRECISIONS = ["bfloat16", "autocast"]
HOSTS = ["SM+LN+G", "EReg(SM(t)+FN+ScFuFFN)", "learned strengths", "gpt2", "llama-grouped"]


def model_of(host, reduction="position_sum", max_entropy="log_context"):
    rule = {"max_entropy": max_entropy}
    if host in HOSTS[:3]:
        strengths = "learned" if host == "learned strengths" else "equal"
        label = "EReg(SM(t)+ScFuFFN)" if host == "learned strengths" else host
        given = {"entropy_strengths": strengths} if "EReg" in label else {}
        return tiny(label, entropy_reduction=reduction, entropy_weight=1.0, **rule, **given)
    strengths = "learned" if host == "gpt2" else "equal"
    return aero.with_entropy_penalty(
        stock_model(host, "sdpa"), reduction=reduction, strengths=strengths, weight=1.0, **rule
    )


def weights_after_a_step(model, loss):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    ("host", "precision"),
    [*((host, "float32") for host in HOSTS), *itertools.product(HOSTS[2:4], PRECISIONS)],
)
def test_a_step_without_a_counted_token_leaves_every_weight_as_it_was(host, precision):
    for (name, (ids, given)), rule in zip(CALLS.items(), itertools.cycle(RULES)):
        model = model_of(host, *rule).train()
        if precision == "bfloat16":
            model.to(torch.bfloat16)
        before = copy.deepcopy(dict(model.named_parameters()))
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            output = model(ids, **given)
        assert output.loss == output.lm_loss == 0, name
        assert output.entropy_loss in (None, 0) and output.penalty_nats in (None, 0), name
        after = weights_after_a_step(model, output.loss)
        for path, weight in before.items():
            assert torch.equal(after[path], weight), (name, path)
        assert all(buffer.isfinite().all() for buffer in model.buffers()), name


@pytest.mark.parametrize("name", CALLS)
def test_an_evaluation_without_a_counted_token_is_what_it_is_in_transformers(name):
    ids, given = CALLS[name]
    if name == "a step of no tokens":
        return  # infinite in transformers
    expected = stock_model("gpt2", "aero")(ids, **given)
    assert expected.loss.isnan()
    for host in HOSTS:
        output = model_of(host).eval()(ids, **given)
        assert output.loss.isnan() and output.lm_loss.isnan(), host
        output.loss.backward()
        assert output.entropy_loss in (None, 0)


def gradients(model, *losses):
    model.zero_grad()
    for loss in losses:
        loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("host", ["learned strengths", "gpt2"])
@pytest.mark.parametrize("reduction", ["position_sum", "query_mean"])
def test_a_micro_batch_without_a_counted_token_leaves_those_with_some_alone(host, reduction):
    model = model_of(host, reduction).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    alone = gradients(model, model(IDS, labels=IDS).loss / 2)
    beside = gradients(model, model(IDS, labels=IDS).loss / 2, model(IDS, labels=NONE).loss / 2)
    for name, expected in alone.items():
        assert expected.isfinite().all() and torch.equal(beside[name], expected), name


def test_micro_batches_of_a_counted_step_are_one_batch_where_one_of_them_counts_no_token():
    # Rows without labels are rows of the sum over positions, as they are in one batch.
    model = model_of("EReg(SM(t)+FN+ScFuFFN)").eval()
    model.training = True  # but running statistics and batch statistics stay out of it
    labels = torch.cat([IDS, NONE])
    whole = gradients(model, model(torch.cat([IDS, IDS + 1]), labels=labels).loss)
    parts = [
        model(ids, labels=part, num_items_in_batch=torch.tensor(10)).loss
        for ids, part in ((IDS, IDS), (IDS + 1, NONE))
    ]
    for name, expected in gradients(model, *parts).items():
        torch.testing.assert_close(whole[name], expected, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("host", "smoothing"), [("learned strengths", 0.0), ("learned strengths", 0.1), ("gpt2", 0.0)]
)
def test_trainers_go_through_batches_without_a_counted_token(host, smoothing, tmp_path):
    model = model_of(host)
    before = copy.deepcopy(dict(model.named_parameters()))
    arguments = TrainingArguments(
        str(tmp_path), max_steps=2, optim="sgd", learning_rate=1.0, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no", logging_steps=1, gradient_accumulation_steps=2,
        per_device_train_batch_size=1, label_smoothing_factor=smoothing,
    )  # fmt: skip
    data = [{"input_ids": row, "labels": row * 0 - 100} for row in IDS]
    own = host != "gpt2"
    trainer = (aero.train.AeroTrainer if own else Trainer)(
        model, arguments, train_dataset=data, **({} if own else {"callbacks": [LossLogCallback()]})
    )
    trainer.train()
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name]), name
    logs = [log for log in trainer.state.log_history if "learning_rate" in log]
    assert [(log["loss"], log["lm_loss"]) for log in logs] == [(0, 0)] * 2
