"""What `transformers` decides by the name of a class, and what takes the labels out of a call."""

import functools
import logging
import types

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from transformers import Trainer, TrainingArguments, pipeline
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import aero
from aero.models import AeroForCausalLM

from .labels import tiny
from .stock_models import stock_model
from .test_ecosystem import saved, tokenizer  # noqa: F401

SMOOTHING = 0.1


class Renamed(AeroForCausalLM):
    """A user's own class, of which `transformers` has never heard."""


def rows():
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(1, 16, (4, 12), generator=generator)
    labels = ids.clone()
    labels[1, 7:] = -100
    return [{"input_ids": one, "labels": other} for one, other in zip(ids, labels, strict=True)]


def batch():
    return {name: torch.stack([row[name] for row in rows()]) for name in ("input_ids", "labels")}


def train(model, folder, trainer_class=Trainer, steps=1, given=None, **arguments):
    options = {
        "max_steps": steps, "report_to": [], "disable_tqdm": True, "use_cpu": True,
        "save_strategy": "no", "logging_steps": 1, "per_device_train_batch_size": 4,
        "learning_rate": 0.02, "weight_decay": 0.0, "train_sampling_strategy": "sequential",
    }  # fmt: skip
    trainer = trainer_class(
        model=model,
        args=TrainingArguments(str(folder), **{**options, **arguments}),
        train_dataset=rows(),
        eval_dataset=rows(),
        **(given or {}),
    )
    trainer.train()
    return trainer


def smoothed(logits, labels):
    """(1 - e) nll + e mean(-log p) of the next tokens, by NumPy in float64."""
    logits = logits.detach().double().numpy()[:, :-1]
    targets = labels.numpy()[:, 1:]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    counted = targets != -100
    chosen = np.take_along_axis(log_p, np.where(counted, targets, 0)[..., None], -1)[..., 0]
    values = -(1 - SMOOTHING) * chosen - SMOOTHING * log_p.mean(-1)
    return values[counted].mean()


@pytest.mark.parametrize("model_class", [AeroForCausalLM, Renamed])
def test_label_smoothing_smooths_the_next_token_whatever_the_class_is_called(model_class, tmp_path):
    model = model_class(tiny("SM+LN+G").config)
    expected = smoothed(model(**batch()).logits, batch()["labels"])
    trainer = train(model, tmp_path, label_smoothing_factor=SMOOTHING)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-4)
    expected = smoothed(model.eval()(**batch()).logits, batch()["labels"])
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("model_class", [AeroForCausalLM, Renamed])
def test_the_counted_tokens_of_a_step_are_the_predicted_ones(model_class, tmp_path):
    model = model_class(tiny("SM+LN+G").config)
    trainer = train(model, tmp_path)
    found = trainer._get_num_items_in_batch([batch(), batch()], torch.device("cpu"))
    assert int(found) == 2 * int((batch()["labels"][:, 1:] != -100).sum())


def test_the_pipeline_and_the_server_know_the_class(saved, monkeypatch):  # noqa: F811
    said = []
    logger = logging.getLogger("transformers.pipelines.base")
    monkeypatch.setattr(logger, "error", lambda message, *_: said.append(message))
    pipeline("text-generation", model=str(saved))
    assert not [one for one in said if "not supported" in one]
    assert {"AeroForCausalLM", "Renamed"} <= {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}
    assert MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["aero"] == "AeroForCausalLM"


def own_loss(outputs, labels, num_items_in_batch=None):
    return outputs["logits"].square().mean()


@pytest.mark.parametrize(
    ("arguments", "given"),
    [({"label_smoothing_factor": SMOOTHING}, {}), ({}, {"compute_loss_func": own_loss})],
)
def test_a_penalty_that_cannot_be_in_the_loss_is_an_error(arguments, given, tmp_path):
    for model in (tiny("EReg(SM(t)+ScFuFFN)"), Renamed(tiny("EReg(SM+LN+G)").config)):
        with pytest.raises(ValueError, match=r"^AeroForCausalLM: .*labels.*AeroTrainer"):
            train(model, tmp_path, given=given, **arguments)
    model = aero.with_entropy_penalty(stock_model("gpt2", "sdpa"))
    with pytest.raises(ValueError, match=r"^with_entropy_penalty: .*labels"):
        train(model, tmp_path, given=given, **arguments)


def test_without_a_penalty_a_loss_of_ones_own_trains(tmp_path):
    trainer = train(tiny("SM+LN+G"), tmp_path, given={"compute_loss_func": own_loss})
    assert trainer.state.log_history[0]["loss"] > 0


def test_an_evaluation_with_smoothed_labels_needs_no_penalty(tmp_path):
    model = tiny("EReg(SM(t)+ScFuFFN)")
    expected = smoothed(model.eval()(**batch()).logits, batch()["labels"])
    arguments = TrainingArguments(
        str(tmp_path), label_smoothing_factor=SMOOTHING, use_cpu=True, report_to=[],
        per_device_eval_batch_size=4, disable_tqdm=True,
    )  # fmt: skip
    found = Trainer(model, arguments, eval_dataset=rows()).evaluate()
    assert found["eval_loss"] == pytest.approx(expected, rel=1e-4)


def fused_loss_forward(self, input_ids=None, labels=None, **kwargs):
    """As liger's fused loss: put on the instance, and calls the decoder itself."""
    hidden = self.transformer(input_ids).last_hidden_state
    return types.SimpleNamespace(loss=self.lm_head(hidden).square().mean())


def test_a_forward_in_place_of_the_one_with_the_penalty_is_refused():
    model = aero.with_entropy_penalty(stock_model("gpt2", "sdpa")).train()
    with pytest.raises(ValueError, match=r"^with_entropy_penalty: .*forward.*liger"):
        model.forward = types.MethodType(fused_loss_forward, model)
    plain = model.forward
    wrapped = functools.wraps(plain)(lambda *args, **kwargs: plain(*args, **kwargs))
    for allowed in (wrapped, torch.compile(plain, backend="eager")):
        model.forward = allowed
    model.forward = wrapped
    assert model(**batch()).entropy_loss > 0

    early = stock_model("gpt2", "sdpa")
    early.forward = types.MethodType(fused_loss_forward, early)
    with pytest.raises(ValueError, match=r"^with_entropy_penalty: .*forward"):
        aero.with_entropy_penalty(early)


@pytest.fixture
def bfloat16_accelerator():
    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator(mixed_precision="bf16", cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)


def test_mixed_precision_of_accelerate_comes_and_goes_with_the_penalty(bfloat16_accelerator):
    model = bfloat16_accelerator.prepare(aero.with_entropy_penalty(stock_model("gpt2", "sdpa")))
    assert model.train()(**batch()).entropy_loss > 0
    model = bfloat16_accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    assert model.train()(**batch()).entropy_loss > 0
