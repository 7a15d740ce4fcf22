"""The loss with running statistics against that with each batch's own."""

import json

import numpy as np
import pytest
import torch

from aero.nn import FoldableNorm
from aero.train.data.windows import validation_windows
from aero.train.runs.perplexity import norm_gap
from aero.train.runs.run_results import analyze_model, evaluate_run, open_run

from .conftest import stopped_at

WINDOWS, CONTEXT = 7, 32


def loss_in_training_mode(model, data) -> float:
    """By the module's own training path, batch by batch of two windows, float64 sums."""
    starts = validation_windows(data.validation, CONTEXT, max_tokens=WINDOWS * CONTEXT)
    total, count = 0.0, 0
    model.train()
    for first in range(0, len(starts), 2):
        positions = starts[first : first + 2, None] + np.arange(CONTEXT)
        ids = torch.from_numpy(data.validation[positions].astype(np.int64))
        with torch.no_grad():
            logits = model(input_ids=ids).logits[:, :-1]
        nll = -logits.double().log_softmax(-1).gather(-1, ids[:, 1:, None])
        total, count = total + nll.sum().item(), count + nll.numel()
    model.eval()
    return total / count


@pytest.mark.parametrize("label", ["SM+FN+R", "SM+FN(scalar)+ScFuFFN"])
def test_the_gap_is_evaluation_loss_minus_the_loss_of_training_mode(whole_runs, label) -> None:
    model, data = open_run(whole_runs(label))
    for norm in model.modules():
        if isinstance(norm, FoldableNorm):
            norm.running_mean_square.mul_(1.7)  # far from any batch, so that the gap is large
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sizes = {"context_length": CONTEXT, "max_tokens": WINDOWS * CONTEXT}
    gap = norm_gap(model, data, batch_tokens=2 * CONTEXT, **sizes)
    other = norm_gap(model, data, batch_tokens=WINDOWS * CONTEXT, **sizes)

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(type(m) is FoldableNorm for m in model.modules() if isinstance(m, FoldableNorm))
    with_batches = loss_in_training_mode(model, data)  # moves the running statistics, so last
    model.load_state_dict(before)
    running = running_loss(model, data)
    # Float32 logits of magnitude 10 carry 1e-6; sums are float64.
    assert gap == pytest.approx(running - with_batches, abs=1e-5)
    assert abs(gap) > 1e-3
    assert gap != other  # statistics of another number of tokens


def running_loss(model, data) -> float:
    starts = validation_windows(data.validation, CONTEXT, max_tokens=WINDOWS * CONTEXT)
    ids = torch.from_numpy(data.validation[starts[:, None] + np.arange(CONTEXT)].astype(np.int64))
    with torch.no_grad():
        logits = model.eval()(input_ids=ids).logits[:, :-1].double()
    return -logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).mean().item()


def test_only_networks_with_foldable_norms_have_a_gap(whole_runs) -> None:
    for label, has_gap in (("SM+FN+R", True), ("SM+LN+G", False)):
        file = whole_runs(label).path / "evaluation.json"
        trained = json.loads(file.read_text())
        assert (trained["norm_gap"] is not None) == has_gap
        evaluate_run(whole_runs(label).path, max_tokens=1024)  # as many as at its end
        again = json.loads(file.read_text())
        # Measured by the network in memory, then by the one on disk: the same float32 weights.
        assert again["norm_gap"] == pytest.approx(trained["norm_gap"], abs=1e-6)


def test_an_analysis_measures_in_evaluation_mode_and_gives_the_mode_back(whole_runs, tmp_path):
    folder = stopped_at(whole_runs("SM+FN+R"), 20, tmp_path / "run")
    model, data = open_run(whole_runs("SM+FN+R"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = []
    for training in (False, True):
        summary = analyze_model(model.train(training), data, folder, windows=3)
        assert {module.training for module in model.modules()} == {training}
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        found.append((summary.to_dict(), json.loads((folder.path / "sample.json").read_text())))
    assert found[0] == found[1]
