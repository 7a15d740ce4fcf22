"""`aero.with_entropy_penalty`: a stock model trains with the penalty."""

import copy

import pytest
import torch
from transformers import GPT2LMHeadModel, Trainer, TrainingArguments

import aero
from aero import ops
from aero.models import without_entropy_penalty

from .labels import tiny
from .stock_models import stock_model

NAMES = ["gpt2", "gpt-neox", "llama-grouped", "mistral-window"]
WEIGHT = 0.01


def rows(count=8, length=10, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 16, (count, length), generator=generator)


def penalized(name="gpt2", dtype=torch.float32, **settings):
    # A random network's entropies are high; so far below, every row is penalised.
    settings = {"weight": WEIGHT, "threshold": 0.1, "margin": 0.01, **settings}
    return aero.with_entropy_penalty(stock_model(name, "sdpa", dtype), **settings).train()


@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradients_are_those_of_the_formula(name):
    tokens = rows(2)
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    arguments = {"attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}

    model = penalized(name)
    output = model(tokens, **arguments)
    output.loss.backward()

    reference = stock_model(name, "aero_entropy").train()
    thresholds = torch.full((2, 4), 0.1, requires_grad=True)
    plain = reference(tokens, output_attentions=True, **arguments)
    penalty = ops.entropy_regularization(
        plain.attentions, thresholds, margin=0.01, row_mask=mask.bool(), backend="reference"
    )
    (plain.loss + WEIGHT * penalty).backward()
    torch.testing.assert_close(output.entropy_loss, penalty)
    torch.testing.assert_close(output.loss, plain.loss + WEIGHT * penalty)
    got = dict(model.named_parameters())
    torch.testing.assert_close(got.pop("entropy_penalty.threshold_bias").grad, thresholds.grad)
    assert thresholds.grad.abs().max() > 0
    for path, parameter in reference.named_parameters():
        torch.testing.assert_close(got.pop(path).grad, parameter.grad, atol=1e-5, rtol=1e-4)
    assert not got


def test_evaluation_is_that_of_the_model_without():
    tokens = rows(2)
    with torch.no_grad():
        output = penalized().eval()(tokens, labels=tokens)
        expected = stock_model("gpt2", "aero")(tokens, labels=tokens)
    assert output.keys() == expected.keys()
    assert torch.equal(output.loss, expected.loss)


def train(model, folder, accumulation=1, steps=1, checkpoint=None, **arguments):
    # One step of SGD without clipping: the change of a weight is its gradient.
    settings = {
        "learning_rate": 1.0,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "seed": 0,
    }
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=8 // accumulation,
        gradient_accumulation_steps=accumulation,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **{**settings, **arguments},
    )
    data = [{"input_ids": row, "labels": row} for row in rows()]
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return trainer


@pytest.mark.parametrize("reduction", ["position_sum", "query_mean"])
def test_gradients_do_not_depend_on_accumulation(reduction, tmp_path):
    changes = []
    for accumulation in (1, 2, 4):
        model = penalized(reduction=reduction, weight=1.0)
        before = copy.deepcopy(model.state_dict())
        train(model, tmp_path, accumulation)
        changes.append({name: value - before[name] for name, value in model.state_dict().items()})
    without = stock_model("gpt2", "aero").train()
    before = copy.deepcopy(without.state_dict())
    train(without, tmp_path)
    name = "transformer.h.0.attn.c_attn.weight"
    share = changes[0][name] - (without.state_dict()[name] - before[name])
    assert share.abs().max() > 0.01 * changes[0][name].abs().max(), "no penalty in the gradient"
    for change in changes[1:]:
        for path, value in change.items():
            scale = changes[0][path].abs().max()
            # Sums of eight rows in another order, then a difference of weights of order 1.
            assert (value - changes[0][path]).abs().max() <= 1e-4 * scale + 1e-6, path


def test_a_stock_trainer_brings_entropies_towards_the_thresholds(tmp_path):
    def mean_entropy(model):
        return aero.entropies(model, rows()).summary().head_entropy.mean()

    arguments = {"steps": 30, "optim": "adamw_torch", "learning_rate": 1e-3, "save_strategy": "no"}
    plain, model = stock_model("gpt2", "sdpa").train(), penalized(weight=0.02)
    start = mean_entropy(model)
    for each in (plain, model):
        train(each, tmp_path, **arguments)
    # Memorising eight rows sharpens attention too, but less.
    assert mean_entropy(model) < 0.75 * mean_entropy(plain) < 0.75 * start


def test_thresholds_are_learned_saved_and_spared_from_weight_decay(tmp_path):
    model = penalized()
    start = model.entropy_penalty.threshold_bias.detach().clone()
    trainer = train(model, tmp_path, learning_rate=0.1)
    learned = model.entropy_penalty.threshold_bias.detach().clone()
    assert not torch.equal(learned, start)
    decayed = trainer.get_decay_parameter_names(model)
    assert "transformer.h.0.attn.c_attn.weight" in decayed
    assert "entropy_penalty.threshold_bias" not in decayed

    model.save_pretrained(tmp_path / "model")
    loaded, info = GPT2LMHeadModel.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert info["unexpected_keys"] == {"entropy_penalty.threshold_bias"}
    assert not info["missing_keys"]
    again = aero.with_entropy_penalty(loaded, threshold=learned)
    assert torch.equal(again.entropy_penalty.threshold_bias, learned)

    without_entropy_penalty(model).save_pretrained(tmp_path / "plain")
    assert type(model) is GPT2LMHeadModel
    _, info = GPT2LMHeadModel.from_pretrained(tmp_path / "plain", output_loading_info=True)
    assert not any(info.values())


def test_a_checkpoint_resumes_with_its_thresholds(tmp_path):
    arguments = {"optim": "adamw_torch", "learning_rate": 1e-2}
    whole = penalized()
    train(whole, tmp_path / "whole", steps=4, **arguments)
    train(penalized(), tmp_path / "part", steps=4, save_strategy="steps", save_steps=2, **arguments)
    resumed = penalized()
    checkpoint = tmp_path / "part" / "checkpoint-2"
    train(resumed, tmp_path / "part", steps=4, checkpoint=checkpoint, **arguments)
    for path, value in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[path], value, msg=path)


def test_a_model_with_the_penalty_converts_as_one_without():
    tokens = rows(2)
    model = penalized().eval()
    with torch.no_grad():
        logits = aero.convert(model, "SM+LN+G")(tokens).logits
        torch.testing.assert_close(logits, model(tokens).logits, atol=1e-4, rtol=1e-4)


def test_copies_and_gradient_checkpointing_keep_the_penalty():
    tokens = rows(2)
    model = penalized()
    expected = model(tokens, labels=tokens)
    expected.loss.backward()
    other = copy.deepcopy(model)
    other.zero_grad()
    other.gradient_checkpointing_enable()
    other(tokens, labels=tokens).loss.backward()
    for got, wanted in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad)
    with torch.no_grad():
        other.entropy_penalty.threshold_bias.add_(0.1)
    assert other(tokens, labels=tokens).entropy_loss != expected.entropy_loss
    assert model(tokens, labels=tokens).entropy_loss == expected.entropy_loss


def test_positional_arguments_and_log_visible_are_understood():
    tokens = rows(2)
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    model = penalized("llama-grouped", max_entropy="log_visible")
    by_name = model(input_ids=tokens, attention_mask=mask, labels=tokens)
    assert model(tokens, mask, labels=tokens).loss == by_name.loss
    expected = ops.entropy_regularization(
        by_name.attentions,
        model.entropy_penalty.threshold_bias,
        margin=0.01,
        max_entropy="log_visible",
        visible_keys=mask.cumsum(dim=-1),
        row_mask=mask.bool(),
    )
    assert torch.equal(by_name.entropy_loss, expected)


def test_what_cannot_have_the_penalty_is_refused():
    with pytest.raises(
        ValueError, match=r"attn_dropout is 0\.1, .* with attn_pdrop=0\.0 \(GPT-2\)"
    ):
        aero.with_entropy_penalty(stock_model("gpt2", "sdpa", attn_pdrop=0.1))
    with pytest.raises(ValueError, match=r"attention_dropout is 0\.2"):
        aero.with_entropy_penalty(stock_model("llama-grouped", "sdpa", attention_dropout=0.2))
    with pytest.raises(ValueError, match="an AeroForCausalLM has its own penalty"):
        aero.with_entropy_penalty(tiny("SM+LN+G"))
    with pytest.raises(ValueError, match="the model has a penalty"):
        aero.with_entropy_penalty(penalized())
    with pytest.raises(ValueError, match="GPT2LMHeadModel has no entropy penalty"):
        without_entropy_penalty(stock_model("gpt2", "sdpa"))
    with pytest.raises(ValueError, match="weight must be a number from 0, got -1"):
        penalized(weight=-1)
    with pytest.raises(ValueError, match="reduction must be 'position_sum' or 'query_mean'"):
        penalized(reduction="mean")
    with pytest.raises(ValueError, match="max_entropy must be 'log_context' or 'log_visible'"):
        penalized(max_entropy="log")


def test_training_calls_without_a_loss_are_refused(tmp_path):
    model = penalized()
    with pytest.raises(ValueError, match=r"needs labels, .*label smoothing"):
        model(rows(2))
    with pytest.raises(ValueError, match=r"needs labels"):
        train(penalized(), tmp_path, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match="return_dict true"):
        model(rows(2), labels=rows(2), return_dict=False)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model.enable_input_require_grads()
    with pytest.raises(ValueError, match=r"no gradient; .*'use_reentrant': False"):
        model(rows(2), labels=rows(2), use_cache=False)
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="must stay 'aero_entropy'"):
        model(rows(2), labels=rows(2))
