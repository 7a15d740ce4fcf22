"""`aero.with_entropy_penalty`: a stock model trains with the penalty."""

import copy

import pytest
import torch
from tests.python.refusals import assert_refused
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, Trainer

import aero
from aero import ops
from aero.models import without_entropy_penalty

from ..train.two_processes import one_step
from .labels import tiny
from .stock_models import stock_model

NAMES = ["gpt2", "gpt-neox", "llama-grouped", "mistral-window"]
WEIGHT = 0.01
TOKENS = 72  # predicted by rows(): there the penalty is the sum itself


def rows(count=8, length=10, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 16, (count, length), generator=generator)


def penalized(name="gpt2", dtype=torch.float32, **settings):
    # A random network's entropies are high; so far below, every row is penalised.
    settings = {"weight": WEIGHT, "tokens": TOKENS, "threshold": 0.1, "margin": 0.01, **settings}
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
    # Of 20 tokens 3 are padding, and the first token of each row is not predicted. The fourth one
    # of the first row is, from padding.
    penalty = penalty * TOKENS / 16
    (plain.loss + WEIGHT * penalty).backward()
    torch.testing.assert_close(output.entropy_loss, penalty)
    torch.testing.assert_close(output.lm_loss, plain.loss)
    torch.testing.assert_close(output.loss, plain.loss + WEIGHT * penalty)
    got = dict(model.named_parameters())
    torch.testing.assert_close(got.pop("entropy_penalty.threshold_bias").grad, thresholds.grad)
    assert thresholds.grad.abs().max() > 0
    for path, parameter in reference.named_parameters():
        torch.testing.assert_close(got.pop(path).grad, parameter.grad, atol=1e-5, rtol=1e-4)
    assert not got


@pytest.mark.parametrize("name", ["labels", "shift_labels"])
def test_a_penalty_is_divided_by_what_the_loss_is_divided_by(name):
    tokens = rows(2)
    labels = tokens.masked_fill(torch.arange(10) > 5, -100)  # 5 predicted tokens in each row
    given = {"labels": labels}
    if name == "shift_labels":
        given["shift_labels"] = torch.nn.functional.pad(labels, (0, 1), value=-100)[
            :, 1:
        ].contiguous()
    for reduction, by_call, by_step in (
        ("position_sum", TOKENS / 10, TOKENS / 40),
        ("query_mean", 1, 10 / 40),
    ):
        model = penalized(reduction=reduction)
        plain = model.entropy_penalty(model(tokens, **given).attentions)
        torch.testing.assert_close(model(tokens, **given).entropy_loss, plain * by_call)
        counted = model(tokens, **given, num_items_in_batch=torch.tensor(40))
        torch.testing.assert_close(counted.entropy_loss, plain * by_step)
        torch.testing.assert_close(counted.loss, counted.lm_loss + WEIGHT * counted.entropy_loss)


def test_at_the_papers_batch_the_penalty_is_the_sum_over_all_rows():
    tokens = rows(128, 128) % 16
    model = aero.with_entropy_penalty(stock_model("gpt2", "sdpa", max_position_embeddings=128))
    with torch.no_grad():
        output = model.train()(tokens, labels=tokens)
        expected = ops.entropy_regularization(output.attentions, torch.full((2, 4), 0.5))
    assert torch.equal(output.entropy_loss, expected)


def test_evaluation_is_that_of_the_model_without():
    tokens = rows(2)
    model = penalized()
    with torch.no_grad():
        trained = model(tokens, labels=tokens)
        output = model.eval()(tokens, labels=tokens)
        expected = stock_model("gpt2", "aero")(tokens, labels=tokens, use_cache=False)
    assert output.keys() == expected.keys()
    assert torch.equal(output.loss, expected.loss) and torch.equal(output.logits, expected.logits)
    assert torch.equal(output.lm_loss, expected.loss)
    assert torch.equal(output.entropy_loss, trained.entropy_loss)
    asked = model(tokens, labels=tokens, output_attentions=True)
    assert torch.equal(model.entropy_penalty(asked.attentions) * TOKENS / 18, output.entropy_loss)
    assert not hasattr(model(tokens), "entropy_loss")


@pytest.mark.parametrize("attentions", [False, True])
def test_evaluation_to_tuples_is_that_of_the_model_without(attentions):
    tokens = rows(2)
    given = {"labels": tokens, "output_attentions": attentions, "return_dict": False}
    with torch.no_grad():
        found = penalized().eval()(tokens, **given)
        expected = stock_model("gpt2", "aero_entropy")(tokens, **given)
    assert [type(value) for value in found] == [type(value) for value in expected]
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def train(model, folder, accumulation=1, steps=1, checkpoint=None, **arguments):
    changes = {"max_steps": steps, "seed": 0, **arguments}
    arguments = one_step(folder, 8 // accumulation, accumulation, **changes)
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
    # Until the next line nothing uses them.
    assert info["unexpected_keys"] == {"entropy_penalty.threshold_bias"}
    assert not info["missing_keys"]
    again = aero.with_entropy_penalty(loaded)
    assert torch.equal(again.entropy_penalty.threshold_bias, learned)

    without_entropy_penalty(model).save_pretrained(tmp_path / "plain")
    assert type(model) is GPT2LMHeadModel
    loaded, info = GPT2LMHeadModel.from_pretrained(tmp_path / "plain", output_loading_info=True)
    assert not any(info.values()) and not hasattr(loaded.config, "entropy_penalty")


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
def test_a_saved_model_has_the_penalty_it_had(name, tmp_path):
    settings = {
        "weight": 0.3, "tokens": 7, "margin": 0.02, "reduction": "query_mean",
        "max_entropy": "log_context", "context_length": 40,
    }  # fmt: skip
    model = penalized(name, **settings)
    with torch.no_grad():
        model.entropy_penalty.threshold_bias.uniform_()
    expected = model(rows(2), labels=rows(2))
    model.save_pretrained(tmp_path / "first")

    def loaded(folder, **given):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / folder)
        return aero.with_entropy_penalty(model, **given).train()

    again = loaded("first")
    assert torch.equal(again(rows(2), labels=rows(2)).loss, expected.loss)
    found = again.entropy_penalty
    assert {name: getattr(found, name) for name in settings} == settings
    # Given values win over saved ones, and are saved next.
    changed = loaded("first", weight=0.5, threshold=0.25)
    changed.save_pretrained(tmp_path / "second")
    other = loaded("second").entropy_penalty
    assert (other.weight, other.tokens) == (0.5, 7) and (other.threshold_bias == 0.25).all()


@pytest.mark.parametrize(
    ("saved", "error", "message"),
    [
        ([], ValueError, "in config.json must be a mapping of settings, got list"),
        ({"weigth": 1}, TypeError, "unknown setting 'weigth'"),
        ({"weight": "1"}, ValueError, "weight must be a number from 0, got '1'"),
        ({"threshold": [[0.5]]}, ValueError, r"a number or \[L, H\] = \[2, 4\], got \[1, 1\]"),
        ({"threshold": "high"}, ValueError, "threshold must be a number or .* got 'high'"),
    ],
)
def test_saved_settings_of_strangers_are_checked(saved, error, message):
    model = stock_model("gpt2", "sdpa")
    model.config.entropy_penalty = saved
    with pytest.raises(error, match=f"^with_entropy_penalty: .*{message}"):
        aero.with_entropy_penalty(model)


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
    labels = tokens.masked_fill(mask == 0, -100)
    labels[1, 4] = -100
    model = penalized("llama-grouped", max_entropy="log_visible")
    by_name = model(input_ids=tokens, attention_mask=mask, labels=labels)
    assert model(tokens, mask, labels=labels).loss == by_name.loss
    expected = ops.entropy_regularization(
        by_name.attentions,
        model.entropy_penalty.threshold_bias,
        margin=0.01,
        max_entropy="log_visible",
        visible_keys=mask.cumsum(dim=-1),
        row_mask=mask.bool(),
    )
    torch.testing.assert_close(by_name.entropy_loss, expected * TOKENS / 14)


def test_what_cannot_have_the_penalty_is_refused():
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
    with pytest.raises(ValueError, match="tokens must be a number from 1, got 0"):
        penalized(tokens=0)
    with pytest.raises(ValueError, match=r"a number or \[L, H\] = \[2, 4\], got \[3, 4\]"):
        penalized(threshold=torch.zeros(3, 4))
    model = stock_model("gpt2", "sdpa")
    message = r"^with_entropy_penalty: unknown setting 'wieght'; did you mean 'weight'\?$"
    with pytest.raises(TypeError, match=message):
        aero.with_entropy_penalty(model, wieght=1.0)
    assert not hasattr(model, "entropy_penalty")


def test_training_calls_without_a_loss_are_refused(tmp_path):
    def call(**arguments):
        return lambda: model(rows(2), **arguments)

    model = penalized()
    assert_refused(call(), "needs labels", "label smoothing")
    smooth = lambda: train(penalized(), tmp_path, label_smoothing_factor=0.1)  # noqa: E731
    assert_refused(smooth, "needs labels")
    assert_refused(call(labels=rows(2), return_dict=False), "return_dict true")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model.enable_input_require_grads()
    assert_refused(call(labels=rows(2), use_cache=False), "no gradient", "'use_reentrant': False")
    model.set_attn_implementation("eager")
    assert_refused(call(labels=rows(2)), "must stay 'aero_entropy'")
