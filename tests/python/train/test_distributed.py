"""Two processes, gradient accumulation and activation checkpointing give the results of one pass.

All that two processes compute comes from one `torchrun` of `two_processes.py`.
"""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as distributed_checkpoint
from transformers import Trainer

from aero.train import AeroTrainer, plan_runs
from aero.train.runs.run_folder import RunFolder
from aero.train.training import train_runs

from .conftest import command_line, metrics, plan_one, stopped_at
from .two_processes import (
    EREG,
    LABELS,
    REDUCTIONS,
    ROWS,
    gradients,
    held_out_loss,
    network,
    step,
    trainer_step,
)

ALL_ROWS = slice(0, ROWS)
# Without batch statistics, which two processes would each have of their own half.
SOURCE, RETRAINED = "SM+LN+G", "SM+LN+R"


@pytest.fixture(scope="module")
def launched(tmp_path_factory, whole_runs, corpus, cache_dir):
    """Folder with the results of two processes."""
    folder = tmp_path_factory.mktemp("two")
    whole = whole_runs(EREG)
    stopped_at(whole, 10, folder / "resumed" / whole.path.name)
    commands = [
        command_line(corpus, cache_dir, folder / name, EREG) for name in ("trained", "resumed")
    ]
    source = str(whole_runs(SOURCE).path)
    retrained = command_line(corpus, cache_dir, folder / "retrained", RETRAINED)
    # Those of the penalty and of temperatures, which this network has not, would be refused.
    retrained = [word for word in retrained if not word.startswith("--set=regularization.")]
    commands.append([*retrained, "--from", source, "--distill-from", source])
    (folder / "commands.json").write_text(json.dumps(commands))
    single = network(EREG, "position_sum").state_dict()
    distributed_checkpoint.save(single, checkpoint_id=folder / "single", no_dist=True)
    script = [str(Path(__file__).with_name("two_processes.py")), str(folder)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    result = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", *script], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("label", LABELS)
def test_ddp_and_fsdp2_give_the_gradients_of_one_process(label, reduction, launched):
    wanted = {}
    for scale in (1.0, None):
        model = network(label, reduction).double()
        step(model, reduction, ALL_ROWS, 1, scale)
        wanted[scale is None] = gradients(model)
    checked = 0
    for rank in range(2):
        for case, (found, _) in torch.load(launched / f"direct-{rank}.pt").items():
            if case[:2] != (label, reduction):
                continue
            expected = wanted[case[-1] is None]
            largest = max(float(value.abs().max()) for value in expected.values())
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                # float64, sums of a few thousand terms in another order.
                torch.testing.assert_close(
                    found[name], value, rtol=0, atol=1e-12 * largest, msg=f"{case} {name}"
                )
            checked += 1
    assert checked == (12 if "+FN+" in label else 24)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_penalties_of_all_parts_make_up_the_penalty_of_the_step(reduction, launched):
    model = network(EREG, reduction).double()
    files = [torch.load(launched / f"direct-{rank}.pt") for rank in range(2)]
    cases = [case for case in files[0] if case[:2] == (EREG, reduction)]
    for case in cases:
        (whole,) = step(model, reduction, ALL_ROWS, 1, scale=None if case[-1] is None else 1.0)
        parts = torch.stack([penalty for found in files for penalty in found[case][1]])
        # As the language-model losses do. Recomputed activations would count entropies twice.
        together = parts.mean() if case[-1] is None else parts.sum()
        torch.testing.assert_close(together, whole, rtol=1e-12, atol=0)
    assert len(cases) == 12


@pytest.mark.parametrize("kind", [Trainer, AeroTrainer])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_any_trainer_steps_alike_with_one_process_and_two(kind, reduction, launched, tmp_path):
    start = {name: p.detach() for name, p in network(EREG, reduction).named_parameters()}
    expected = trainer_step(tmp_path, kind, reduction, 1)
    largest = max(float((expected[name] - start[name]).abs().max()) for name in start)
    assert largest > 0.01
    found = {parts: trainer_step(tmp_path, kind, reduction, parts) for parts in (2, 4)}
    for rank in range(2):
        for (name, case, parts), weights in torch.load(launched / f"trainer-{rank}.pt").items():
            if (name, case) == (kind.__name__, reduction):
                found[rank, parts] = weights
    assert len(found) == 8
    for case, weights in found.items():
        for name, value in expected.items():
            torch.testing.assert_close(
                weights[name], value, rtol=0, atol=1e-5 * largest, msg=f"{case} {name}"
            )


def test_a_sharded_checkpoint_loads_into_one_process_and_back(launched):
    model = network(EREG, "position_sum")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    step(model, "position_sum", ALL_ROWS, 1, scale=1.0)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    state = {name: torch.zeros_like(value) for name, value in before.items()}
    distributed_checkpoint.load(state, checkpoint_id=launched / "sharded", no_dist=True)
    assert state.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-6, msg=name)
    for rank in range(2):
        reloaded = torch.load(launched / f"reloaded-{rank}.pt")
        assert all(torch.equal(reloaded[name], before[name]) for name in before)


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_a_batch_that_is_left_over_counts_once_and_stalls_no_process(kind, launched):
    expected = asdict(held_out_loss(network("EReg(SM(t)+FN+ScFuFFN)", "position_sum")))
    for rank in range(2):
        found = json.loads((launched / f"losses-{rank}.json").read_text())[kind]
        for values, others in ((expected, found), (expected["context"], found["context"])):
            assert values.keys() == others.keys()
            for name in values.keys() - {"context"}:
                value = values[name]
                value = list(value) if isinstance(value, tuple) else value
                assert others[name] == pytest.approx(value), name


def test_two_processes_anneal_and_distil_as_one(
    launched, whole_runs, tiny_recipe, cache_dir, tmp_path
):
    source = whole_runs(SOURCE).path
    (run,) = plan_runs(
        tiny_recipe, [RETRAINED], [0], output=tmp_path, start_from=source, distill_from=source
    )
    train_runs([run], cache_dir=cache_dir, say=lambda text: None)
    folder = RunFolder(launched / "retrained" / run.folder.path.name)
    assert folder.info().start == run.folder.info().start
    assert_same_losses(metrics(folder), metrics(run.folder))


def assert_same_losses(records: list[dict], expected: list[dict]) -> None:
    assert len(expected) == 12
    for one, other in zip(records, expected, strict=True):
        assert (one["kind"], one["step"]) == (other["kind"], other["step"])
        for name in ("loss", "lm_loss", "entropy_loss", "perplexity", "grad_norm"):
            if other.get(name) is not None:
                # Gradients are summed in another order.
                assert one[name] == pytest.approx(other[name], rel=1e-4)


@pytest.mark.parametrize("case", ["trained", "resumed"])
def test_aero_train_under_torchrun_gives_the_losses_of_one_process(case, launched, whole_runs):
    """Also from a checkpoint that one process wrote."""
    whole = whole_runs(EREG)
    folder = RunFolder(launched / case / whole.path.name)
    assert folder.info().status == "finished"
    assert_same_losses(metrics(folder), metrics(whole))


def test_one_process_resumes_from_a_checkpoint_of_two(
    launched, whole_runs, tiny_recipe, cache_dir, tmp_path
):
    whole = whole_runs(EREG)
    two = RunFolder(launched / "trained" / whole.path.name)
    folder = stopped_at(two, 10, tmp_path / whole.path.name)
    run = plan_one(tiny_recipe, EREG, tmp_path)
    assert run.checkpoint.name == "step-10"
    train_runs([run], cache_dir=cache_dir, say=lambda text: None)
    assert_same_losses(metrics(folder), metrics(whole))
