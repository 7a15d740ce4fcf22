"""The parts of the loss, and entropies, in the logs of any Trainer."""

import types

import numpy as np
import pytest
import torch
from torch import nn
from transformers import TrainerControl, TrainerState, TrainingArguments

from aero.train import entropy_callback
from aero.train.entropy_callback import EntropyCallback, LossLogCallback

from .test_records import board_of

HEADS = np.array([[0.0, 4.0]])


class Parts(nn.Module):
    """Returns the next losses that it was given."""

    def __init__(self):
        super().__init__()
        self.next = (0.0, None)

    def forward(self, rows=1, num_items_in_batch=None):
        lm_loss, penalty = self.next
        return types.SimpleNamespace(
            lm_loss=None if lm_loss is None else torch.tensor(lm_loss),
            entropy_loss=None if penalty is None else 1e5 * torch.tensor(penalty),
            penalty_nats=None if penalty is None else torch.tensor(penalty),
            logits=torch.zeros(rows, 1),
        )


@pytest.fixture
def logged(tmp_path):
    arguments = TrainingArguments(str(tmp_path), report_to=[], use_cpu=True)
    state, model, callback = TrainerState(), Parts(), LossLogCallback()
    control = TrainerControl()

    def step(losses, *, train=True, evaluates=False, **options):
        model.train(train)
        model.next = losses
        model(**options)
        if evaluates:
            callback.on_prediction_step(arguments, state, control)

    def log(**logs):
        state.log_history.append({})
        callback.on_log(arguments, state, control, logs=logs)
        return logs, state.log_history[-1]

    return callback, model, state, arguments, control, step, log


def test_parts_are_means_over_calls_and_rows(logged):
    callback, model, state, arguments, control, step, log = logged
    callback.on_init_end(arguments, state, control, model=model)
    step((9.0, 9.0))
    state.global_step = 5
    callback.on_train_begin(arguments, state, control, model=model)  # watches it once
    assert len(model._forward_hooks) == 1
    step((1.0, 3.0))
    step((2.0, None))  # a part that this call lacks
    state.global_step = 7
    found, kept = log(loss=1.0, learning_rate=0.1)
    assert found == {"loss": 1.0, "learning_rate": 0.1, "lm_loss": 1.5, "penalty_nats": 1.5}
    assert kept == {"lm_loss": 1.5, "penalty_nats": 1.5}
    assert log(loss=1.0, learning_rate=0.1)[1] == {}  # nothing since
    step((1.0, None), num_items_in_batch=7)
    assert log(loss=1.0, learning_rate=0.1)[1] == {}  # a part of a step makes no mean
    step((1.0, None), train=False, rows=0, evaluates=True)
    assert log(eval_loss=1.0, eval_runtime=0.1)[1] == {}  # of no rows
    # Losses over the tokens of a whole step: three micro-batches make one up.
    for loss in (1.0, 2.0, 3.0):
        step((loss, None), num_items_in_batch=7)
    state.global_step = 9
    assert log(loss=1.0, learning_rate=0.1)[1] == {"lm_loss": 3.0}
    # An evaluation weighs by rows; calls that are none of its steps do not count.
    step((8.0, 8.0), train=False, rows=5)
    step((1.0, 2.0), train=False, rows=3, evaluates=True)
    callback.on_prediction_step(arguments, state, control)  # of another model
    step((None, None), train=False)
    step((5.0, 2.0), train=False, rows=1, evaluates=True)
    assert log(test_loss=1.0, test_runtime=2.0)[1] == {
        "test_lm_loss": 2.0,
        "test_penalty_nats": 2.0,
    }
    step((4.0, 4.0), train=False, evaluates=True)
    callback.on_predict(arguments, state, control, metrics={})
    assert log(eval_loss=1.0, eval_runtime=2.0)[1] == {}
    step((1.0, 1.0))
    for other in ({"train_loss": 1.0, "train_runtime": 2.0}, {"loss": 1.0}, {"eval_runtime": 2.0}):
        assert log(**other) == (other, {})
    callback.on_log(arguments, state, control)


def test_parts_of_processes_are_joined(logged, monkeypatch):
    callback, model, state, arguments, control, step, log = logged
    callback.on_train_begin(arguments, state, control, model=model)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda total: total.mul_(2))
    for average, mean in ((True, 3.0), (False, 1.5)):
        arguments.average_tokens_across_devices = average
        step((1.0, None), num_items_in_batch=7)
        step((2.0, None), num_items_in_batch=7)
        state.global_step += 2
        # Over the tokens of all processes the losses add up; over those of one they are averaged.
        assert log(loss=0.0, learning_rate=0.0)[1] == {"lm_loss": mean}
        step((1.0, None))
        step((2.0, None))
        assert log(loss=0.0, learning_rate=0.0)[1] == {"lm_loss": 1.5}


def test_entropies_are_measured_when_they_are_due(tmp_path, monkeypatch):
    measured, arguments = [], TrainingArguments(str(tmp_path), report_to=[], use_cpu=True)
    found = types.SimpleNamespace(temperatures=None, thresholds=None)
    found.summary = lambda: types.SimpleNamespace(head_entropy=HEADS)
    monkeypatch.setattr(
        entropy_callback, "entropies", lambda *given: measured.append(given) or found
    )
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    model, control = Parts(), TrainerControl()
    for first, is_first_process, expected in ((0, True, [0, 2, 4, 5]), (3, False, [4, 5])):
        callback = EntropyCallback("batch", every_steps=2, folder="~/board")
        assert callback.scalars == {}
        state = TrainerState(max_steps=5, global_step=first, is_world_process_zero=is_first_process)
        callback.on_train_begin(arguments, state, control, model=model)
        steps = [first] * len(measured)
        for step in range(first + 1, 6):
            state.global_step = step
            before = len(measured)
            callback.on_step_end(arguments, state, control, model=model)
            steps += [step] * (len(measured) - before)
        callback.on_train_end(arguments, state, control, model=model)
        callback.on_train_end(arguments, state, control, model=model)
        assert steps == expected and measured == [(model, "batch")] * len(steps)
        assert callback.scalars["entropy/layer_0/mean"] == 2.0
        measured.clear()
    assert board_of(tmp_path / "board")["entropy/layer_0/mean"] == dict.fromkeys([0, 2, 4, 5], 2.0)


def test_the_default_distance_of_measurements_is_a_hundred_steps():
    assert EntropyCallback("batch")._every_steps == 100
    assert EntropyCallback("batch", every_steps=1)._every_steps == 1
