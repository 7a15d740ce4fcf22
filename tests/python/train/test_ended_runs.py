"""Runs that have ended: as origins of others, and measured once more."""

import hashlib
import json
import types
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.python.refusals import assert_refused, assert_told

from aero.internals.errors import TrainingError
from aero.internals.records import as_dict
from aero.internals.run_files import Divergence, OriginRecord
from aero.train import starting
from aero.train.runs import perplexity, run_results
from aero.train.runs.origins import Origin, find_origin
from aero.train.runs.perplexity import HeldOutLoss, measure_loss
from aero.train.runs.run_folder import RunFolder
from aero.train.runs.run_results import analyze_run, evaluate_run, open_run, write_evaluation

from .conftest import begun

EREG, FOLDABLE = "EReg(SM(t)+ScFuFFN)", "SM+FN+R"


def test_an_origin_is_a_run_a_checkpoint_or_a_folder(whole_runs, tmp_path):
    run = whole_runs(EREG)
    spec = starting.ArchitectureSpec.from_dict(run.info().spec)
    flops = spec.flops("executed").total / 32
    found = find_origin(str(run.path), "--from")
    assert found == Origin(run.path, run.model, run.model, EREG, 20, 5120, flops)
    weights = hashlib.sha256((run.model / "model.safetensors").read_bytes()).hexdigest()
    assert as_dict(found.record(OriginRecord)) == {
        "path": str(run.path), "label": EREG, "steps": 20, "tokens": 5120,
        "flops_per_token": flops, "sha256": weights,
    }  # fmt: skip
    checkpoint = run.checkpoints / "step-15"
    tokenizer = Path(run.info().corpus.folder) / "tokenizer"
    assert find_origin(checkpoint, "--from") == Origin(
        checkpoint, checkpoint, tokenizer, EREG, 15, 15 * 256, flops
    )
    assert find_origin(run.model, "--from") == Origin(run.model, run.model, run.model, EREG)
    config = json.loads((run.model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "ffn": "none such"}))
    assert find_origin(tmp_path, "--from").label is None
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert find_origin(tmp_path, "--from") == Origin(tmp_path, tmp_path, tmp_path)
    (tmp_path / "config.json").write_text('{"annealed_from": "SM"}')
    stopped = RunFolder(tmp_path / "stopped")
    begun(stopped, "interrupted")
    for path, *named in (
        (tmp_path, f"--x {tmp_path}", "resume its run", "annealing"),
        ("no/such", "--x", "a run folder, a checkpoint", "got no/such"),
        (stopped.path, f"--x {stopped.path}", "train it to the end first", "'interrupted'"),
    ):
        assert_refused(partial(find_origin, path, "--x"), *named, error=TrainingError)
    stopped.model.mkdir()
    (stopped.path / "run.json").write_text('{"status": "finished"}')
    with pytest.raises(TrainingError, match=r"run\.json: expected an entry"):
        find_origin(stopped.path, "--x")


# --- measurements of a finished run -----------------------------------------------------------


def test_an_evaluation_measures_as_it_is_asked_to(whole_runs, monkeypatch):
    folder, asked = whole_runs(FOLDABLE), []
    before = json.loads((folder.path / "evaluation.json").read_text())
    found = HeldOutLoss(nll=6.0, tokens=4, bytes=3, document_nll=(4.0, 2.0), document_tokens=(2, 2))

    def measured(model, tokens, starts, **options):
        asked.append((len(starts), options))
        return found

    def gap(model, data, **options):
        asked.append(options)
        return 0.25

    monkeypatch.setattr(run_results, "measure_loss", measured)
    monkeypatch.setattr(run_results, "norm_gap", gap)
    assert evaluate_run(str(folder.path), max_tokens=64, stride=16) is found
    ((count, options),) = asked
    data = open_run(folder)[1]
    assert np.array_equal(options.pop("token_bytes"), data.token_bytes) and count == 3
    assert options == {
        "context_length": 32, "batch_tokens": 8192, "stride": 16,
        "end_mark": data.tokenizer.eos_token_id, "show_progress": True,
    }  # fmt: skip
    asked.clear()
    assert evaluate_run(str(folder.path)) is found
    (count, _), gap_options = asked
    assert count == 32
    assert gap_options == {"context_length": 32, "max_tokens": 512, "batch_tokens": 256}
    low, high = found.perplexity_interval
    unknown = {"loss": None, "tokens": 0}
    written = {
        "windows": "disjoint", "loss": 1.5, "perplexity": found.perplexity, "tokens": 4,
        "bits_per_byte": found.bits_per_byte, "bytes": 3, "documents": 2,
        "perplexity_interval": [low, high], "norm_gap": 0.25,
        "document_nll": [4.0, 2.0], "document_tokens": [2, 2],
        "context": {"by_position": [], "repeated": unknown, "new": unknown},
    }  # fmt: skip
    file = folder.path / "evaluation.json"
    assert json.loads(file.read_text()) == written
    write_evaluation(folder, found)
    assert json.loads(file.read_text()) == {**written, "norm_gap": None}
    measure = run_results.validation_measure(data, max_tokens=64)
    model = types.SimpleNamespace(config=types.SimpleNamespace(spec=starting.ArchitectureSpec))
    model.config.spec = types.SimpleNamespace(context_length=32)
    asked.clear()
    assert measure(model) == 1.5
    ((count, options),) = asked
    assert count == 2 and options.pop("token_bytes") is data.token_bytes
    assert options == {"context_length": 32, "batch_tokens": 4096}
    monkeypatch.undo()
    folder.write_result("evaluation.json", before)
    with pytest.raises(TrainingError) as error:
        analyze_run(folder.path.parent / "none")
    assert str(error.value).startswith(f"train: {folder.path.parent / 'none'} is no run folder")


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({"status": "running"}, "its status is 'running'"),
        ({"status": "diverged", "diverged": Divergence(step=3)}, "NaN at step 3"),
        ({"status": "finished"}, "model/config.json is gone"),
    ],
)
def test_a_run_without_a_network_is_told_why(info, reason, tmp_path):
    folder = RunFolder(tmp_path)
    begun(folder, **info)
    with pytest.raises(TrainingError) as error:
        open_run(folder)
    assert_told(error, tmp_path, f"({reason})")


def test_a_measurement_shows_its_batches(monkeypatch):
    bars = []

    class Bar:
        def __init__(self, *asked):
            bars.append([*asked])

        def update(self, count):
            bars[-1].append(count)

        def close(self):
            bars[-1].append("closed")

    class Network(torch.nn.Linear):
        def forward(self, input_ids, use_cache):
            if input_ids.max() > 6:
                raise RuntimeError("broken")
            return types.SimpleNamespace(logits=torch.zeros(*input_ids.shape, 9))

    monkeypatch.setattr(perplexity, "progress_bar", Bar)
    model, sizes = Network(1, 1).eval(), {"token_bytes": np.ones(9, dtype=np.int64)}
    sizes |= {"context_length": 4, "batch_tokens": 11, "show_progress": True}
    starts = np.arange(5) * 4
    measure_loss(model, np.zeros(20, dtype=np.uint16), starts, **sizes)
    with pytest.raises(RuntimeError, match="broken"):
        measure_loss(model.train(), np.full(20, 7, dtype=np.uint16), starts, **sizes)
    assert model.training
    begun = ["evaluating", 3, "batch"]
    assert bars == [[*begun, 1, 1, 1, "closed"], [*begun, "closed"]]
