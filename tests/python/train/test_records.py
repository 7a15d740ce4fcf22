"""Whole records: what a run, a Trainer's log and TensorBoard are told, field by field."""

import hashlib
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import SessionLog

from aero.internals.records import as_record, changed, record_bytes
from aero.internals.run_files import RecorderState, TrainLine
from aero.train.entropy_callback import entropy_scalars, open_board
from aero.train.runs import recorder as recording
from aero.train.runs.perplexity import HeldOutLoss
from aero.train.runs.recorder import RunRecorder
from aero.train.runs.run_folder import RunFolder


def recorder_of(folder, **options):
    given = {"writes": True, "tensorboard": True, "first_step": 0, **options}
    return RunRecorder(folder, device=torch.device("cpu"), tokens_per_step=64, **given)


def board_of(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: {e.step: round(e.value, 5) for e in events.Scalars(name)} for name in names}


def add(recorder, *losses, weight=0.5):
    given = [None if value is None else torch.tensor(value) for value in losses]
    recorder.add_losses(*given, weight=weight)


HEADS = np.array([[0.0, 4.0], [math.nan, 3.0000004]])


@pytest.fixture
def still(monkeypatch):
    """A clock that stands still."""
    monkeypatch.setattr(recording, "time", SimpleNamespace(monotonic=lambda: 1000.0))


def test_a_run_writes_these_records_and_curves(tmp_path, still):
    folder = RunFolder(tmp_path)
    head = folder.append_metrics(TrainLine(step=1))
    recorder = recorder_of(folder)
    for losses in ((1.0, 0.5, 0.25), (2.0, 1.5, 0.75)):
        add(recorder, *losses)
    recorder.finish_step()
    add(recorder, 3.0, 1.0, 2.0, weight=0.25)  # another step, another weight
    recorder.finish_step()
    assert recorder.write_training(2, learning_rate=0.125, gradient_norm=math.inf) == 3.0
    assert recorder.write_training(3, learning_rate=0.0, gradient_norm=0.5) == 0.0  # no step
    measured = HeldOutLoss(nll=6.0, tokens=4, bytes=3)
    recorder.write_validation(3, measured, None)
    recorder.write_validation(4, measured, 0.25)
    recorder.write_entropies(4, HEADS, temperatures=None, thresholds=None, learned={})
    recorder.write_entropies(
        5,
        HEADS,
        temperatures=[np.array([[1.0, 3.0]])],
        thresholds=np.array([[0.25, 0.75]]),
        learned={"alpha": [2.0]},
        spectra=[None, {"jensen_shannon": 0.5}],
    )
    recorder.close()
    validation = {
        "kind": "validation",
        "loss": 1.5,
        "perplexity": math.exp(1.5),
        "bits_per_byte": 6.0 / (math.log(2) * 3),
        "tokens": 4,
    }
    entropy = {
        "kind": "entropy",
        "head_entropy": [[0.0, 4.0], [None, 3.0]],
        "nan_counts": [0, 1],
        "learned": {},
        "ffn_spectra": None,
        "frac_collapse": entropy_scalars(HEADS)["entropy/frac_collapse"],
        "frac_overload": entropy_scalars(HEADS)["entropy/frac_overload"],
    }
    zero = {"loss": 0.0, "lm_loss": 0.0, "entropy_loss": 0.0, "penalty_nats": 0.0}
    zero |= {"lr": 0.0, "grad_norm": 0.5}
    text = (tmp_path / "metrics.jsonl").read_bytes()
    assert [json.loads(line) for line in text.splitlines()[1:]] == [
        {
            "kind": "train", "step": 2, "tokens": 128, "loss": 3.0, "lm_loss": 1.5,
            "entropy_loss": 1.5, "penalty_nats": 0.5, "lr": 0.125, "grad_norm": None,
            "seconds": 0.0,
        },
        {"kind": "train", "step": 3, "tokens": 192, **zero, "seconds": 0.0},
        {**validation, "step": 3, "norm_discrepancy": None},
        {**validation, "step": 4, "norm_discrepancy": 0.25},
        {**entropy, "step": 4},
        {
            **entropy, "step": 5, "learned": {"alpha": [2.0]},
            "ffn_spectra": [None, {"jensen_shannon": 0.5}],
        },
    ]  # fmt: skip
    assert text.startswith(head)
    assert recorder.metrics_sha256 == hashlib.sha256(text).hexdigest()
    assert recorder.state().metrics.bytes == len(text)
    curves = board_of(folder.tensorboard)
    assert curves["train/loss"] == {2: 3.0, 3: 0.0}
    assert curves["validation/norm_discrepancy"] == {4: 0.25}
    assert curves["entropy/layer_0/mean"] == {4: 2.0, 5: 2.0}
    assert curves["aero/temperature/layer_0/max"] == {5: 3.0}
    assert curves["aero/threshold/layer_0/mean"] == {5: 0.5}
    # A curve is of what the loss has in it: the penalty before its weight reads like an explosion.
    hidden = ("step", "kind", "tokens", "entropy_loss")
    assert not [name for name in curves if name.endswith(hidden)]
    assert set(curves) >= {
        *(f"train/{name}" for name in ("lm_loss", "penalty_nats", "lr", "grad_norm", "seconds")),
        *(f"validation/{name}" for name in ("loss", "perplexity", "bits_per_byte")),
    }


def test_a_network_without_penalty_records_none(tmp_path, still):
    folder = RunFolder(tmp_path)
    recorder = recorder_of(folder, tensorboard=False)
    add(recorder, 1.0, 1.0, None)
    recorder.finish_step()
    assert recorder.write_training(1, learning_rate=0.5, gradient_norm=1.0) == 1.0
    recorder.close()
    (line,) = folder.metrics().train
    assert line.entropy_loss is line.penalty_nats is None
    assert not folder.tensorboard.exists()


def test_a_state_goes_on_as_if_nothing_had_happened(tmp_path, still):
    (tmp_path / "a").mkdir()
    recorder = recorder_of(RunFolder(tmp_path / "a"), tensorboard=False)
    add(recorder, 1.0, math.nan, 3.0)
    recorder.finish_step()
    recorder._begin -= 7.5
    written = json.loads(record_bytes(recorder.state()))
    assert written == {
        "sums": [1.0, None, 3.0, 1.5],
        "steps": 1,
        "has_entropy_loss": True,
        "seconds": 7.5,
        "metrics": {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()},
    }
    state = as_record(written, RecorderState, "state")
    for writes in (True, False):
        other = recorder_of(RunFolder(tmp_path / "a"), tensorboard=False, writes=writes)
        other.restore(state)
        # Under `torchrun` one process takes over the sums of all.
        kept = written if writes else {**written, "sums": [0.0, 0.0, 0.0, 0.0]}
        assert json.loads(record_bytes(other.state())) == kept
        other.finish_step()
        other.write_training(1, learning_rate=0.0, gradient_norm=0.0)
        other.close()
    recorder.close()
    (line,) = RunFolder(tmp_path / "a").metrics().train
    assert (line.loss, line.lm_loss, line.entropy_loss) == (0.5, None, 1.5)
    assert line.penalty_nats == 0.75 and line.seconds == 7.5


def test_a_checkpoint_without_the_weighted_penalty_goes_on_and_invents_none(tmp_path, still):
    recorder = recorder_of(RunFolder(tmp_path), tensorboard=False)
    older = changed(recorder.state(), sums=[1.0, 0.5, 3.0], has_entropy_loss=True)
    recorder.restore(older)
    assert recorder.losses_are_finite()
    for _ in range(2):
        add(recorder, 1.0, 0.5, 1.0)
        recorder.finish_step()
        recorder.write_training(1, learning_rate=0.0, gradient_norm=0.0)
    recorder.close()
    first, second = RunFolder(tmp_path).metrics().train
    assert (first.entropy_loss, first.penalty_nats) == (4.0, None)
    assert (second.entropy_loss, second.penalty_nats) == (1.0, 0.5)


def test_the_sums_of_processes_are_added(tmp_path, still, monkeypatch):
    recorder = recorder_of(RunFolder(tmp_path), tensorboard=False)
    add(recorder, 1.0, 2.0, 3.0)
    recorder.finish_step()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda sums: sums.mul_(2))
    assert recorder.state().sums == [2.0, 4.0, 6.0, 3.0]
    assert recorder.write_training(1, learning_rate=0.0, gradient_norm=0.0) == 2.0
    recorder.close()


def test_a_board_that_goes_on_begins_with_the_step_after(tmp_path):
    board = open_board(str(tmp_path / "a" / "b"), first_step=3)
    board.close()
    (file,) = (tmp_path / "a" / "b").iterdir()
    events = EventAccumulator(str(file))
    seen = [(event.step, event.session_log.status) for event in events._generator.Load()]
    assert seen[0] == (0, 0) and seen[-1] == (4, SessionLog.START)


def test_scalars_of_entropies_are_these():
    scalars = entropy_scalars(
        np.array([[0.0, 4.0], [2.0, 3.0]]),
        temperatures=[np.array([[1.0, 3.0]]), np.array([[5.0, 7.0]])],
        thresholds=np.array([[0.25, 0.75], [1.0, 0.0]]),
    )
    assert scalars == {
        "entropy/layer_0/mean": 2.0,
        "entropy/layer_1/mean": 2.5,
        "entropy/frac_collapse": 0.25,
        "entropy/frac_overload": 0.5,
        "aero/temperature/layer_0/mean": 2.0,
        "aero/temperature/layer_0/min": 1.0,
        "aero/temperature/layer_0/max": 3.0,
        "aero/temperature/layer_1/mean": 6.0,
        "aero/temperature/layer_1/min": 5.0,
        "aero/temperature/layer_1/max": 7.0,
        "aero/threshold/layer_0/mean": 0.5,
        "aero/threshold/layer_1/mean": 0.5,
    }
    assert all(type(value) is float for value in scalars.values())
    lost = entropy_scalars(np.full((1, 2), math.nan))
    assert math.isnan(lost["entropy/layer_0/mean"]) and lost["entropy/frac_overload"] == 0
