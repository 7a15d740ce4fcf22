"""`aero.with_entropy_penalty` in every training loop: two processes make the steps of one."""

import json
import os
import runpy
import sys

import pytest
import torch
from accelerate.state import AcceleratorState

PROGRAM = """
import json, os, sys
import torch
from accelerate import Accelerator
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
import aero

processes = int(sys.argv[1])
config = GPT2Config(
    vocab_size=16, n_embd=32, n_layer=2, n_head=4, n_positions=32, initializer_range=0.3,
    attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0,
)
rows = torch.randint(1, 16, (8, 10), generator=torch.Generator().manual_seed(5))
logs, losses = {}, {}


def network(reduction):
    set_seed(0)
    strengths = "learned" if reduction == "position_sum" else "equal"
    settings = {"threshold": 0.1, "margin": 0.01, "reduction": reduction, "strengths": strengths}
    model = GPT2LMHeadModel(config)
    return aero.with_entropy_penalty(model, weight=1.0, tokens=36, **settings).train()


def sharded(model):
    for block in model.transformer.h:
        fully_shard(block)
    return fully_shard(model)


def plain(model, parts):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rank = torch.distributed.get_rank() if processes > 1 else 0
    for half in rows.chunk(2):
        for part in half.chunk(processes)[rank].chunk(parts):
            (model(part, labels=part).loss / parts).backward()
        optimizer.step()
        optimizer.zero_grad()


def half_unlabelled(model):
    # Of two micro-batches, or processes, the second counts no token.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rank = torch.distributed.get_rank() if processes > 1 else 0
    for half in rows.chunk(2):
        first, second = half.chunk(2)
        shares = [(first, first), (second, torch.full_like(second, -100))]
        for part, labels in shares[rank : rank + 1] if processes > 1 else shares:
            (model(part, labels=labels).loss * processes / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def accelerated(model):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.DataLoader(rows, batch_size=2 // processes)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for batch in data:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch, labels=batch).loss)
            optimizer.step()
            optimizer.zero_grad()


def trained(model, name):
    arguments = TrainingArguments(
        output_dir=f"{processes}", max_steps=2, optim="sgd", learning_rate=0.01,
        per_device_train_batch_size=4 // processes // 2, gradient_accumulation_steps=2, seed=0,
        lr_scheduler_type="constant", max_grad_norm=0.0, report_to=[], save_strategy="no",
        use_cpu=True, disable_tqdm=True, logging_steps=1, per_device_eval_batch_size=2,
        train_sampling_strategy="sequential", ddp_find_unused_parameters=False,
    )
    data = [{"input_ids": row, "labels": row} for row in rows]
    callbacks = [aero.EntropyCallback(rows, folder=f"{processes}")]
    trainer = Trainer(
        model, arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks
    )
    trainer.train()
    trainer.evaluate()
    logs[name] = trainer.state.log_history


def whole(model):
    found = {}
    for name, value in model.state_dict().items():
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        found[name.removeprefix("module.")] = value
    return found


if processes > 1:
    meeting = {"init_method": f"file://{os.getcwd()}/meeting", "rank": int(os.environ["RANK"])}
    torch.distributed.init_process_group("gloo", world_size=processes, **meeting)
wraps = {"plain": lambda model: model}
if processes > 1:
    wraps = {"ddp": DistributedDataParallel, "fsdp": sharded}
weights = {}
for reduction in ("position_sum", "query_mean"):
    for parts in (1, 2):
        for kind, wrap in wraps.items():
            model = wrap(network(reduction))
            plain(model, parts)
            weights[f"{kind} {reduction} {parts}"] = whole(model)
    for kind, wrap in wraps.items():
        model = wrap(network(reduction))
        half_unlabelled(model)
        weights[f"unlabelled {kind} {reduction}"] = whole(model)
    model = network(reduction)
    accelerated(model)
    weights[f"accelerate {reduction}"] = whole(model)
    model = network(reduction)
    trained(model, reduction)
    weights[f"trainer {reduction}"] = whole(model)
rank = torch.distributed.get_rank() if processes > 1 else 0
if rank == 0:
    torch.save(weights, f"weights-{processes}.pt")
    with open(f"logs-{processes}.json", "w") as file:
        json.dump(logs, file)
if processes > 1:
    torch.distributed.destroy_process_group()
"""
REDUCTIONS = ("position_sum", "query_mean")


def run_rank(script, rank):
    """One of two processes, with the variables that `torchrun` sets for it."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "localhost", "LOCAL_WORLD_SIZE": "2"}
    os.chdir(script.parent)
    sys.argv = [str(script), "2"]
    runpy.run_path(str(script))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, fork_server):
    """The files of one process and of two."""
    folder = tmp_path_factory.mktemp("processes")
    script = folder / "script.py"
    script.write_text(PROGRAM)
    # As daemons they end with the tests: where one fails, the other waits for it.
    processes = [
        fork_server.Process(target=run_rank, args=(script, rank), daemon=True) for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=300)
    assert [process.exitcode for process in processes] == [0, 0]
    # It belongs to the process: an earlier test's bfloat16 would hold here too.
    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", [str(script), "1"])
        runpy.run_path(str(script))
    return folder


def assert_same_steps(found, expected, name):
    assert (expected["entropy_penalty.threshold_bias"] - 0.1).abs().max() > 1e-4
    assert found.keys() == expected.keys()
    if "position_sum" in name:
        assert expected["entropy_penalty.strength_bias"].abs().max() > 1e-4
    for path, value in expected.items():
        # Float32 sums of the same rows in another order, twice.
        allowed = 1e-4 * value.abs().max()
        assert (found[path] - value).abs().max() <= allowed, (name, path)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_plain_loops_of_any_kind_make_the_steps_of_one_process(reduction, folder):
    one, two = (torch.load(folder / f"weights-{processes}.pt") for processes in (1, 2))
    expected = one[f"plain {reduction} 1"]
    compared = {f"1 {name}": weights for name, weights in one.items() if "trainer" not in name}
    compared |= {f"2 {name}": weights for name, weights in two.items() if "trainer" not in name}
    compared = {name: weights for name, weights in compared.items() if "unlabelled" not in name}
    compared = {name: weights for name, weights in compared.items() if reduction in name}
    # Alone: two plain and Accelerate. Together: DDP and FSDP2, with accumulation too, Accelerate.
    assert len(compared) == 3 + 5
    for name, weights in compared.items():
        assert_same_steps(weights, expected, name)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_process_without_a_counted_token_leaves_the_others_alone(reduction, folder):
    one, two = (torch.load(folder / f"weights-{processes}.pt") for processes in (1, 2))
    expected = one[f"unlabelled plain {reduction}"]
    for kind in ("ddp", "fsdp"):
        assert_same_steps(two[f"unlabelled {kind} {reduction}"], expected, f"{kind} {reduction}")


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_trainer_makes_and_logs_the_steps_of_one_process(reduction, folder):
    # Not those of a plain loop: of GPT-2, Trainer counts the first label of a row too.
    one, two = (torch.load(folder / f"weights-{processes}.pt") for processes in (1, 2))
    assert_same_steps(two[f"trainer {reduction}"], one[f"trainer {reduction}"], "trainer")
    one, two = (
        json.loads((folder / f"logs-{processes}.json").read_text())[reduction]
        for processes in (1, 2)
    )
    checked = 0
    for log, expected in zip(two, one, strict=True):
        for prefix in ("", "eval_"):
            if prefix + "loss" not in expected:
                continue
            for part in ("loss", "lm_loss", "penalty_nats"):
                assert log[prefix + part] == pytest.approx(expected[prefix + part], rel=1e-4)
            penalty = 0.0 if prefix else expected["penalty_nats"]
            together = expected[prefix + "lm_loss"] + penalty
            assert expected[prefix + "loss"] == pytest.approx(together, rel=1e-5)
            checked += 1
    assert checked == 3
