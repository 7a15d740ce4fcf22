"""`aero.EntropyCallback` with `transformers.Trainer` and any model."""

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import aero
from aero.models import AeroConfig, AeroForCausalLM

ROWS = torch.randint(1, 16, (4, 8), generator=torch.Generator().manual_seed(0))


def gpt2(**settings):
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, **settings)
    return GPT2LMHeadModel(config)


def own(label):
    torch.manual_seed(0)
    return AeroForCausalLM(AeroConfig.from_label(label, model="tiny"))


def train(model, folder, callbacks=(), steps=3):
    arguments = TrainingArguments(
        str(folder), max_steps=steps, report_to=[], use_cpu=True, disable_tqdm=True, seed=0,
        save_strategy="no",
    )  # fmt: skip
    data = [{"input_ids": row, "labels": row} for row in ROWS]
    Trainer(model, arguments, train_dataset=data, callbacks=list(callbacks)).train()


def written(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        name: {e.step: e.value for e in events.Scalars(name)} for name in events.Tags()["scalars"]
    }


@pytest.mark.parametrize(
    "build",
    [
        lambda: gpt2(),
        lambda: aero.with_entropy_penalty(gpt2(attn_pdrop=0.0)),
        lambda: own("SM+LN+G"),
        lambda: own("EReg(SM(t)+ScFuFFN)"),
    ],
    ids=["gpt2", "gpt2 with penalty", "own", "own with temperature"],
)
def test_curves_are_those_of_the_model(build, tmp_path):
    model = build()
    before = aero.entropies(model, ROWS).summary()
    callback = aero.EntropyCallback(ROWS, every_steps=2)
    train(model, tmp_path, [callback])
    after = aero.entropies(model, ROWS).summary()

    curves = written(tmp_path / "runs" / "entropy")
    assert all(set(curve) == {0, 2, 3} for curve in curves.values())
    for layer in range(2):
        curve = curves[f"entropy/layer_{layer}/mean"]
        assert curve[0] == pytest.approx(before.head_entropy[layer].mean(), rel=1e-6)
        assert curve[3] == pytest.approx(after.head_entropy[layer].mean(), rel=1e-6)
    quarters = after.to_dict()["quarters"]["observed_max"]
    assert curves["entropy/frac_collapse"][3] == pytest.approx(quarters[0])
    assert curves["entropy/frac_overload"][3] == pytest.approx(quarters[3])
    assert callback.scalars == pytest.approx({name: curve[3] for name, curve in curves.items()})
    assert ("aero/temperature/layer_1/mean" in curves) == (after.temperatures is not None)
    has_thresholds = hasattr(model, "entropy_penalty") or model.config.model_type == "aero"
    has_thresholds &= getattr(model, "is_entropy_regularized", True)
    assert ("aero/threshold/layer_1/mean" in curves) == has_thresholds


@pytest.mark.parametrize("reduction", ["position_sum", "query_mean"])
@pytest.mark.parametrize("kind", ["stock", "own"])
def test_trainers_logs_show_the_parts_of_the_loss(kind, reduction, tmp_path):
    if kind == "stock":
        settings = {"weight": 0.5, "tokens": 28, "reduction": reduction}
        # Not GPT-2, of which Trainer counts one label too many in each row.
        sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 16}
        config = LlamaConfig(num_hidden_layers=2, num_attention_heads=2, **sizes)
        model = aero.with_entropy_penalty(LlamaForCausalLM(config), **settings)
    else:
        fields = {"entropy_weight": 0.5, "entropy_tokens": 28, "entropy_reduction": reduction}
        label = "EReg(SM(t)+ScFuFFN)"
        model = AeroForCausalLM(AeroConfig.from_label(label, model="tiny", **fields))
    # At a learning rate of 0 every step and every evaluation sees the same model.
    arguments = TrainingArguments(
        str(tmp_path), max_steps=4, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="no", learning_rate=0.0, logging_steps=2, eval_strategy="steps",
        eval_steps=2, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        per_device_eval_batch_size=3,
    )  # fmt: skip
    data = [{"input_ids": row, "labels": row} for row in ROWS]
    callbacks = [aero.EntropyCallback(ROWS)] if kind == "stock" else []
    trainer = (Trainer if kind == "stock" else aero.train.AeroTrainer)(
        model, arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks
    )
    trainer.train()
    model.train()(ROWS, labels=ROWS)  # other calls are in no log
    trainer.predict(data[:1])
    model.eval()(ROWS[:1], labels=ROWS[:1])
    metrics = trainer.evaluate()

    with torch.no_grad():
        logits = model(ROWS).logits[:, :-1].flatten(0, 1)
        penalty = model.train()(ROWS, labels=ROWS).penalty_nats.item()
    lm_loss = torch.nn.functional.cross_entropy(logits, ROWS[:, 1:].flatten()).item()
    logs = trainer.state.log_history
    steps = [log for log in logs if "loss" in log]
    evaluations = [log for log in logs if "eval_loss" in log]
    assert (len(steps), len(evaluations)) == (2, 3)
    for log in steps:
        assert log["lm_loss"] == pytest.approx(lm_loss, rel=1e-5)
        assert log["penalty_nats"] == pytest.approx(penalty, rel=1e-5) and penalty > 0.005
        assert log["loss"] == pytest.approx(log["lm_loss"] + penalty, rel=1e-5)
    for log in [*evaluations, metrics]:
        assert log["eval_loss"] == pytest.approx(lm_loss, rel=1e-5) == log["eval_lm_loss"]
        # Trainer's mean over rows, of batches of three and one.
        assert log["eval_penalty_nats"] == pytest.approx(penalty, rel=1e-5)


def test_training_is_the_same_with_and_without(tmp_path):
    plain, watched = gpt2(), gpt2()  # dropout draws random numbers
    implementation = watched.config._attn_implementation
    train(plain, tmp_path)
    train(watched, tmp_path, [aero.EntropyCallback(ROWS, every_steps=1)])
    for name, value in plain.state_dict().items():
        assert torch.equal(watched.state_dict()[name], value), name
    assert watched.config._attn_implementation == implementation


def test_the_folder_can_be_chosen_or_be_trainers(tmp_path, monkeypatch):
    train(gpt2(), tmp_path, [aero.EntropyCallback(ROWS, folder=tmp_path / "mine")], steps=1)
    assert written(tmp_path / "mine")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "shared"))
    train(gpt2(), tmp_path, [aero.EntropyCallback(ROWS)], steps=1)
    assert written(tmp_path / "shared")


def test_a_distance_of_no_steps_is_refused():
    with pytest.raises(ValueError, match="every_steps must be >= 1, got 0"):
        aero.EntropyCallback(ROWS, every_steps=0)
