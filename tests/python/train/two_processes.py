"""The jobs of `test_distributed` under `torchrun`: each leaves its results in the given folder.

The tests compute the networks, rows and labels of the jobs in one process too.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as distributed_checkpoint
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainingArguments

from aero.models import AeroConfig, AeroForCausalLM
from aero.train import AeroTrainer
from aero.train.runs.perplexity import HeldOutLoss, measure_loss

EREG = "EReg(SM(t)+ScFuFFN)"
# Every kind of parameter that is read outside of its block, and statistics over all processes.
LABELS = [EREG, "EReg(SM(t)+FN+ScFuFFN)", "SM+LR(global)", "SM+LN+G"]
REDUCTIONS = ["position_sum", "query_mean"]
ROWS = 8
# Micro-batches, whether activations are recomputed, and what a loss is multiplied by where the
# tokens of the step are counted; None is a plain loop.
WAYS = [(1, False, 2.0), (1, True, 2.0), (2, False, 2.0), (4, True, 2.0)]
WAYS += [(1, False, None), (2, True, None)]


def network(label: str, reduction: str, *, synchronized: bool = False) -> AeroForCausalLM:
    """A network whose penalty weighs far more than rounding."""
    torch.manual_seed(0)
    config = AeroConfig.from_label(
        label,
        model="tiny",
        entropy_weight=0.1,
        tolerance_margin=0.0,
        temperature_init=0.5,
        entropy_reduction=reduction,
        entropy_tokens=ROWS * 15,
        norm_statistics="synchronized" if synchronized else "process",
    )
    return AeroForCausalLM(config).train()


def batch(*, ragged: bool) -> tuple[Tensor, Tensor]:
    """Tokens and labels, [ROWS, 16]; ragged ones have other label counts in every row."""
    ids = torch.randint(0, 256, (ROWS, 16), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    if ragged:
        for row in range(ROWS):
            labels[row, 16 - row :] = -100
    return ids, labels


def step(
    model: nn.Module, reduction: str, rows: slice, parts: int, scale: float | None
) -> list[Tensor]:
    """Accumulates the gradients of some rows in `parts` micro-batches; returns their penalties.

    Without a scale as plain loops do it: nothing is counted, every loss is divided by `parts`.
    """
    ids, labels = batch(ragged=reduction == "position_sum" and scale is not None)
    counted = {} if scale is None else {"num_items_in_batch": labels[:, 1:].ne(-100).sum()}
    penalties = []
    for part, wanted in zip(ids[rows].chunk(parts), labels[rows].chunk(parts), strict=True):
        output = model(part, labels=wanted, **counted)
        (output.loss * (1 / parts if scale is None else scale)).backward()
        if output.entropy_loss is not None:
            penalties.append(output.entropy_loss.detach())
    return penalties


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Whole gradients by the parameters' own names."""
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if hasattr(gradient, "full_tensor"):
            gradient = gradient.full_tensor()
        found[name.removeprefix("module.")] = gradient
    return found


def sharded(model: AeroForCausalLM) -> nn.Module:
    """The network under FSDP2, block by block."""
    for block in model.transformer.blocks():
        fully_shard(block)
    return fully_shard(model)


def direct_steps(folder: Path) -> None:
    """One step of DDP and of FSDP2, with and without activation checkpointing."""
    rank = torch.distributed.get_rank()
    rows = slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)
    found = {}
    for label in LABELS:
        for reduction in REDUCTIONS:
            for kind, wrap in (("ddp", DistributedDataParallel), ("fsdp", sharded)):
                for parts, recompute, scale in WAYS:
                    if parts > 1 and "+FN+" in label:
                        continue
                    model = network(label, reduction, synchronized=True).double()
                    if recompute:
                        model.gradient_checkpointing_enable()
                    model = wrap(model)
                    penalties = step(model, reduction, rows, parts, scale)
                    case = (label, reduction, kind, parts, recompute, scale)
                    found[case] = (gradients(model), penalties)
    torch.save(found, folder / f"direct-{rank}.pt")


def sharded_checkpoint(folder: Path) -> None:
    """A checkpoint of FSDP2 after one step of SGD, and one that it reads of a single process."""
    rank = torch.distributed.get_rank()
    rows = slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)
    model = sharded(network(EREG, "position_sum"))
    step(model, "position_sum", rows, 1, scale=2.0)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    state = get_model_state_dict(model)
    distributed_checkpoint.save(state, checkpoint_id=folder / "sharded")
    other = sharded(network(EREG, "position_sum"))
    state = get_model_state_dict(other)
    distributed_checkpoint.load(state, checkpoint_id=folder / "single")
    whole = {name: value.full_tensor() for name, value in state.items()}
    torch.save(whole, folder / f"reloaded-{rank}.pt")


def one_step(folder: Path, rows: int, parts: int, **changes: Any) -> TrainingArguments:
    """One step of plain SGD without clipping, so that weights show the gradient itself.

    Args:
        folder: of the Trainer.
        rows: of each micro-batch.
        parts: micro-batches of the step.
        **changes: to the arguments.
    """
    fixed = {"max_steps": 1, "optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0.0}
    fixed |= {"lr_scheduler_type": "constant", "use_cpu": True, "save_strategy": "no"}
    fixed |= {"report_to": [], "disable_tqdm": True, "gradient_accumulation_steps": parts}
    return TrainingArguments(str(folder), per_device_train_batch_size=rows, **{**fixed, **changes})


def trainer_step(
    folder: Path, kind: type[Trainer], reduction: str, parts: int
) -> dict[str, Tensor]:
    """Weights after one step."""
    world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    model = network(EREG, reduction)
    ids, labels = batch(ragged=reduction == "position_sum")
    arguments = one_step(
        folder / "trainer", ROWS // parts // world, parts, ddp_find_unused_parameters=False
    )
    data = [{"input_ids": i, "labels": w} for i, w in zip(ids, labels, strict=True)]
    kind(model=model, args=arguments, train_dataset=data).train()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def trainer_steps(folder: Path) -> None:
    """The Trainer of `transformers` and ours, with accumulation."""
    found = {}
    for kind in (Trainer, AeroTrainer):
        for reduction in REDUCTIONS:
            for parts in (1, 2, 4):
                found[kind.__name__, reduction, parts] = trainer_step(
                    folder, kind, reduction, parts
                )
    torch.save(found, folder / f"trainer-{torch.distributed.get_rank()}.pt")


def held_out_loss(model: nn.Module) -> HeldOutLoss:
    """The loss over three batches, one for each of two processes and one that is left."""
    tokens = torch.randint(0, 256, (80,), generator=torch.Generator().manual_seed(2)).numpy()
    return measure_loss(
        model,
        tokens,
        np.arange(0, 80, 16),
        token_bytes=np.arange(1, 257),
        context_length=16,
        batch_tokens=32,
        end_mark=7,
    )


def sharded_losses(folder: Path) -> None:
    """The held-out loss of a network under FSDP2 and under DDP."""
    found = {}
    for kind, wrap in (("fsdp", sharded), ("ddp", DistributedDataParallel)):
        found[kind] = held_out_loss(wrap(network("EReg(SM(t)+FN+ScFuFFN)", "position_sum")))
    values = {kind: asdict(loss) for kind, loss in found.items()}
    (folder / f"losses-{torch.distributed.get_rank()}.json").write_text(json.dumps(values))


def command_lines(folder: Path) -> None:
    """The commands that the test left in the folder."""
    from aero.cli import app

    for arguments in json.loads((folder / "commands.json").read_text()):
        app(arguments, standalone_mode=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    for job in (direct_steps, sharded_checkpoint, sharded_losses, trainer_steps, command_lines):
        job(Path(sys.argv[1]))
    torch.distributed.destroy_process_group()
