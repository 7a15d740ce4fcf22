"""`AeroTrainer` with plain `TrainingArguments`, as a user of `transformers` has it."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from aero.internals.errors import TrainingError
from aero.models import AeroConfig, AeroForCausalLM
from aero.train.recipes.recipe import Recipe, TrainingSection
from aero.train.starting import batch_split
from aero.train.trainer import AeroTrainer

EREG = "EReg(SM(t)+ScFuFFN)"


class Rows(Dataset):
    """Rows of different length, padded with labels of -100."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, 256, (count, 16), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.ids[index]
        labels = ids.clone()
        labels[16 - index % 4 :] = -100
        return {"input_ids": ids, "labels": labels}


def trainer_for(label, tmp_path, *, rows=8, model=None, factors=None, **arguments):
    torch.manual_seed(0)
    model = model or AeroForCausalLM(AeroConfig.from_label(label, model="tiny"))
    options = {"max_steps": 1, "report_to": [], "disable_tqdm": True, "use_cpu": True}
    options |= {"per_device_train_batch_size": 8, "save_strategy": "no", "logging_strategy": "no"}
    return AeroTrainer(
        model=model,
        args=TrainingArguments(output_dir=str(tmp_path), **{**options, **arguments}),
        train_dataset=Rows(rows),
        eval_dataset=Rows(rows),
        on_losses=arguments.pop("on_losses", None),
        learning_rate_factors=factors,
    )


def test_weight_decay_spares_everything_but_matrices(tmp_path):
    trainer = trainer_for(EREG, tmp_path)
    decayed = trainer.get_decay_parameter_names(trainer.model)
    assert "transformer.wte.weight" in decayed
    spared = ("temperature", "threshold", "alpha", "beta", "bias", "norm", "ln_")
    assert not [name for name in decayed if any(word in name for word in spared)]
    trainer.create_optimizer()
    without = [group for group in trainer.optimizer.param_groups if group["weight_decay"] == 0]
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    listed = {names[id(p)] for group in without for p in group["params"]}
    assert any("temperature" in name for name in listed)
    assert any("entropy_threshold" in name for name in listed)


def test_temperatures_and_thresholds_move_at_their_own_rates(tmp_path):
    def moved(factors):
        trainer = trainer_for(EREG, tmp_path, factors=factors, learning_rate=1e-3, max_steps=1)
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        trainer.train()
        return {
            name: (p.detach() - before[name]).abs().max().item()
            for name, p in trainer.model.named_parameters()
        }

    # Adam's first step is the learning rate, whatever the gradient.
    same = moved(None)
    other = moved({"temperature.value": 0.1, "entropy_threshold": 7.0, "no such": 3.0})
    for name, step in same.items():
        factor = 0.1 if "temperature" in name else 7.0 if "threshold" in name else 1.0
        assert other[name] == pytest.approx(factor * step, rel=1e-3), name
        assert step > 0 or "mlp" in name


def test_groups_at_their_own_rates_keep_their_weight_decay_and_every_parameter(tmp_path):
    factors = {"alpha": 2.0, "wte.weight": 3.0}
    trainer = trainer_for(EREG, tmp_path, factors=factors, weight_decay=0.1)
    groups = trainer.create_optimizer().param_groups
    assert sum(len(group["params"]) for group in groups) == len(list(trainer.model.parameters()))
    rate = trainer.args.learning_rate
    found = {(group["lr"] / rate, group["weight_decay"]) for group in groups}
    assert found == {(1.0, 0.1), (1.0, 0.0), (2.0, 0.0), (3.0, 0.1)}


@pytest.mark.parametrize("accumulation", [2, 4])
@pytest.mark.parametrize("reduction", ["position_sum", "query_mean"])
def test_losses_and_gradients_do_not_depend_on_the_micro_batch(accumulation, reduction, tmp_path):
    def run(steps):
        torch.manual_seed(0)
        config = AeroConfig.from_label(
            EREG, model="tiny", entropy_weight=1e-2, entropy_reduction=reduction
        )
        model = AeroForCausalLM(config)
        shares, gradients = [], []
        trainer = trainer_for(
            EREG,
            tmp_path,
            model=model,
            max_grad_norm=0.0,
            per_device_train_batch_size=8 // steps,
            gradient_accumulation_steps=steps,
        )
        trainer._on_losses = lambda *parts: shares.append([part.item() for part in parts])
        trainer.create_optimizer()
        step = trainer.optimizer.step
        trainer.optimizer.step = lambda *a, **k: (
            gradients.extend(p.grad.clone() for p in model.parameters()),
            step(*a, **k),
        )[1]
        trainer.train()
        return np.sum(shares, axis=0), gradients, float(trainer.gradient_norm)

    losses, gradients, norm = run(1)
    other_losses, other_gradients, other_norm = run(accumulation)
    # Label counts differ between micro-batches; for query_mean the penalty is then the
    # token-weighted mean, another average than that of one batch.
    exact = reduction == "position_sum"
    np.testing.assert_allclose(other_losses[1], losses[1], rtol=1e-5)
    np.testing.assert_allclose(other_losses[2], losses[2], rtol=1e-5 if exact else 0.05)
    assert losses[0] == pytest.approx(losses[1] + 1e-2 * losses[2], rel=1e-5)
    if exact:
        assert other_norm == pytest.approx(norm, rel=1e-4)
        for one, other in zip(gradients, other_gradients, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4 * norm)


def test_the_gradient_norm_is_kept_before_clipping(tmp_path):
    trainer = trainer_for("SM+R", tmp_path, max_grad_norm=1e-3)
    trainer.train()
    kept = float(trainer.gradient_norm)
    torch.manual_seed(0)
    model = AeroForCausalLM(AeroConfig.from_label("SM+R", model="tiny"))
    rows = Rows(8)
    ids, labels = (
        torch.stack([rows[i][name] for i in range(8)]) for name in ("input_ids", "labels")
    )
    model.train()(input_ids=ids, labels=labels).loss.backward()
    expected = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert kept == pytest.approx(float(expected), rel=1e-4) and kept > 1e-3


def test_evaluation_counts_no_penalty_and_gathers_no_outputs(tmp_path):
    trainer = trainer_for(EREG, tmp_path, per_device_eval_batch_size=8)
    trainer.model.config.entropy_weight = 1e3
    seen = []
    trainer._on_losses = lambda *parts: seen.append(parts)
    metrics = trainer.evaluate()
    rows = Rows(8)
    ids, labels = (
        torch.stack([rows[i][name] for i in range(8)]) for name in ("input_ids", "labels")
    )
    with torch.no_grad():
        expected = trainer.model.eval()(input_ids=ids, labels=labels).lm_loss
    assert metrics["eval_loss"] == pytest.approx(float(expected), rel=1e-5)
    assert seen == [] and trainer.micro_batches == []
    predictions = trainer.predict(Rows(8)).predictions
    assert predictions is None


def test_the_training_set_is_read_in_order(tmp_path):
    trainer = trainer_for("SM+R", tmp_path, max_steps=2, per_device_train_batch_size=4)
    seen = []
    trainer.compute_loss = lambda model, inputs, **k: (
        seen.append(inputs["input_ids"]),
        AeroTrainer.compute_loss(trainer, model, inputs, **k),
    )[1]
    trainer.train()
    assert torch.equal(torch.cat(seen), Rows(8).ids)


def test_a_checkpoint_is_called_step_and_nothing_half_written_stays(tmp_path, monkeypatch):
    trainer = trainer_for("SM+R", tmp_path, save_strategy="steps", save_steps=1)
    trainer.train()
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    trainer = trainer_for("SM+R", tmp_path, max_steps=2, save_strategy="steps", save_steps=2)

    def full(*arguments, **options):
        raise RuntimeError("PytorchStreamWriter failed: No space left on device")

    monkeypatch.setattr(trainer, "_save_optimizer_and_scheduler", full)
    with pytest.raises(TrainingError, match=r"no space left in .* the checkpoint of step 2"):
        trainer.train()
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


@pytest.mark.parametrize(
    ("name", "given", "handed_on"),
    [
        ("train", ((None, "trial"), {"ignore": 1}), ((None, "trial"), {"ignore": 1})),
        ("train", ((True,), {}), ((True,), {})),
        ("_load_from_checkpoint", (("x", "model"), {}), (("x", "model"), {})),
        ("_load_from_checkpoint", (("x",), {}), (("x", None), {})),
        ("_load_optimizer_and_scheduler", (("x",), {}), (("x",), {})),
        ("_load_scaler", (("x",), {}), (("x",), {})),
        ("_load_rng_state", (("x",), {}), (("x",), {})),
        ("_get_grad_norm", (("model", 2.0), {}), (("model",), {"grad_norm": 2.0})),
        ("prediction_step", (("m", {}, True, ["k"]), {}), (("m", {}, True, ["k"]), {})),
        ("prediction_step", (("m", {}, False), {}), (("m", {}, False, None), {})),
    ],
)
def test_what_the_base_class_is_asked_is_handed_on(name, given, handed_on, monkeypatch):
    asked = []
    monkeypatch.setattr(
        Trainer, name, lambda self, *args, **options: asked.append((args, options)) or "answer"
    )
    trainer = object.__new__(AeroTrainer)
    trainer.compute_metrics = len
    answer = getattr(trainer, name)(*given[0], **given[1])
    assert asked == [handed_on] and answer == (None if name.startswith("_load") else "answer")
    if name == "_get_grad_norm":
        assert trainer.gradient_norm == "answer"
    if name == "prediction_step":  # without a metric nothing needs the outputs
        trainer.compute_metrics = None
        trainer.prediction_step("m", {}, False)
        assert asked[1] == (("m", {}, True, None), {})


class AskingForOutputs(AeroTrainer):
    """A trainer that looks at the outputs, as those of other libraries do."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
        )
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("kind", ["plain", "smoothed", "asking", "own forward"])
def test_a_step_has_logits_only_where_something_reads_them(tmp_path, kind):
    class OwnForward(AeroForCausalLM):
        def forward(self, input_ids=None, labels=None, num_items_in_batch=None):
            return super().forward(input_ids, labels=labels, num_items_in_batch=num_items_in_batch)

    network = OwnForward if kind == "own forward" else AeroForCausalLM
    model = network(AeroConfig.from_label(EREG, model="tiny"))
    given = {"label_smoothing_factor": 0.1} if kind == "smoothed" else {}
    trainer = trainer_for(EREG, tmp_path, model=model, **given)
    if kind == "asking":
        trainer.__class__ = AskingForOutputs
    found = []
    model.register_forward_hook(lambda _module, _inputs, output: found.append(output.logits))
    trainer.train()
    assert [logits is None for logits in found] == [kind == "plain"]
    found.clear()
    trainer.evaluate()
    assert found[0] is not None


def test_smoothed_labels_join_the_penalty_and_thresholds_move(tmp_path):
    factor = 0.2
    losses = []
    model = AeroForCausalLM(AeroConfig.from_label(EREG, model="tiny", entropy_weight=1e-3))
    start = torch.stack([b.attn.entropy_threshold.detach().clone() for b in model.transformer.h])
    rows = Rows(8)
    ids, labels = (
        torch.stack([rows[i][name] for i in range(8)]) for name in ("input_ids", "labels")
    )
    with torch.no_grad():
        output = model.train()(input_ids=ids, labels=labels)
    log_p = torch.log_softmax(output.logits.double()[:, :-1], -1).numpy()
    counted = labels[:, 1:].numpy() != -100
    chosen = np.take_along_axis(log_p, ids[:, 1:, None].numpy(), -1)[..., 0]
    smooth = (-(1 - factor) * chosen - factor * log_p.mean(-1))[counted].mean()
    trainer = trainer_for(EREG, tmp_path, model=model, label_smoothing_factor=factor)
    trainer._on_losses = lambda *parts: losses.append([part.item() for part in parts])
    trainer.train()
    ((loss, lm_loss, penalty),) = losses
    assert lm_loss == pytest.approx(-chosen[counted].mean(), rel=1e-4)
    assert penalty > 0 and loss == pytest.approx(smooth + 1e-3 * penalty, rel=1e-4)
    moved = torch.stack([b.attn.entropy_threshold.detach() for b in model.transformer.h])
    assert (moved != start).any()


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"train_sampling_strategy": "group_by_length"}, {}),
        ({"data_seed": 3}, {}),
        ({"save_total_limit": 2}, {}),
        ({"load_best_model_at_end": True, "eval_strategy": "no", "save_strategy": "no"}, {}),
        ({}, {"compute_loss_func": lambda outputs, labels, num_items_in_batch: outputs.loss}),
        ({"label_smoothing_factor": 0.1}, {"distillation": object()}),
        ({}, {"learning_rate_factors": {"alpha": 2.0}, "optimizers": (object(), None)}),
    ],
)
def test_settings_that_would_have_no_effect_are_refused(settings, options, tmp_path):
    model = AeroForCausalLM(AeroConfig.from_label(EREG, model="tiny"))
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], **settings)
    with pytest.raises(ValueError, match=r"^AeroTrainer: \w+ must be left out: "):
        AeroTrainer(model=model, args=arguments, train_dataset=Rows(4), **options)


@pytest.mark.parametrize(
    ("windows", "processes", "limit", "expected"),
    [
        (32, 1, None, (32, 1)),
        (32, 2, None, (16, 1)),
        (32, 1, 8, (8, 4)),
        (32, 1, 12, (8, 4)),
        (30, 1, 7, (6, 5)),
        (7, 1, 2, (1, 7)),
        (8, 4, 1, (1, 2)),
    ],
)
def test_a_step_is_split_evenly(windows, processes, limit, expected):
    section = TrainingSection(
        tokens_per_step=windows * 128, micro_batch_tokens=None if limit is None else limit * 128
    )
    assert batch_split(Recipe(training=section), processes) == expected
