"""Trains targets' networks on a borrowed GPU, a whole step as one graph and several at once.

    python3 benchmarks/cuda/networks.py TARGET... --prepared FOLDER... [--budget 240] [--archive A]

Networks of a million parameters leave a GPU idle while Python asks for kernels. Here a step of
training is captured once and then replayed, with its windows, learning rate and losses on the
device, and the graphs of several networks run side by side. Arithmetic, order of windows, schedule
and records are those of `aero train`; `tests/python/test_cuda_networks.py` compares the two. There
are no checkpoints: what the budget ends is lost, and a second call begins those runs again. The
texts of the targets need not be there, only what was prepared of them, in the folders that
`--prepared` names. The archive has the folders of the runs that ended, without weights, and a
second call unpacks it. The targets' runs are those of one output, as of `python -m benchmarks.paper
--output`. PYTHONPATH must name what `packaging/build_offline.py` prints. The exit status is 2 where
time ran out before all ended.
"""

from __future__ import annotations

import argparse
import math
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from aero.models.initialization import decay_parameter_names  # noqa: E402
from aero.nn.weight_forms import TransposedLinear  # noqa: E402
from aero.train.data.prepared_data import PreparedData, open_prepared_data  # noqa: E402
from aero.train.data.windows import TrainingWindows, validation_windows  # noqa: E402
from aero.train.one_run import build_model, open_folder  # noqa: E402
from aero.train.runs.perplexity import measure_loss, norm_gap  # noqa: E402
from aero.train.runs.recorder import RunRecorder  # noqa: E402
from aero.train.runs.run_folder import RunFolder  # noqa: E402
from aero.train.runs.run_results import write_evaluation  # noqa: E402
from benchmarks.paper.cells import Cell, TargetPlan, plan_target, unique_cells  # noqa: E402

#: Endings of the files of a run that the archive has.
KEPT = (".json", ".jsonl", ".yaml")
#: Steps between looks at the clock, which wait for the device.
STRIDE = 100
#: Tokens of a forward pass of an evaluation.
BATCH_TOKENS = 65_536


class CapturedRun:
    """A run of `aero train` whose steps are replayed.

    Args:
        cell: the run.
        data: its text.
        tokens: the training split on the device, [tokens], any integer type.
        output: folder of all cells.
    """

    def __init__(self, cell: Cell, data: PreparedData, tokens: Tensor, output: Path) -> None:
        self.plan, self._data, self._tokens = cell.planned(output), data, tokens
        self.recipe, self.device = self.plan.recipe, tokens.device
        self._refuse_what_a_graph_lacks()
        mark = data.tokenizer.eos_token_id
        model: Any = build_model(self.plan, bos_token_id=mark, eos_token_id=mark)
        self.model = model.to(self.device).train()
        steps = self.recipe.steps
        open_folder(self.plan, data)
        self._recorder = RunRecorder(
            self.plan.folder,
            device=torch.device("cpu"),
            tokens_per_step=self.recipe.training.tokens_per_step,
            writes=True,
            tensorboard=False,
            first_step=0,
        )
        windows, context = self.recipe.windows_per_step, self.recipe.model.context_length
        order = TrainingWindows(
            data.train, context, count=steps * windows, seed=self.plan.seed
        ).starts()
        self._starts = torch.from_numpy(order).view(steps, windows, 1).to(self.device)
        self._within = torch.arange(context, device=self.device)
        self._rates = torch.tensor([self._rate(step) for step in range(steps)], device=self.device)
        self._step = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._is_half = self.recipe.training.precision == "bfloat16"
        self._halves = self._rounded_weights() if self._is_half else {}
        self._records = torch.full((steps, 2), math.nan, device=self.device)
        self._optimizer = self._adamw()

    def _refuse_what_a_graph_lacks(self) -> None:
        """Raises ValueError for what `aero train` does and this does not."""
        recipe, plan = self.recipe, self.plan
        lacking = {
            "a schedule that is not linear": recipe.schedule.shape != "linear",
            "an entropy penalty": plan.spec.entropy_regularized,
            "temperatures, which have a rate of their own": "SM(t)" in plan.label,
            "float16": recipe.training.precision == "float16",
            "a network to start from or a teacher": bool(plan.source or plan.teacher),
        }
        if found := [name for name, is_asked in lacking.items() if is_asked]:
            raise ValueError(f"networks: {plan.name} asks for {found[0]}: use `aero train`")

    def _rounded_weights(self) -> dict[str, Tensor]:
        """Copies of the linear layers' weights in bfloat16, by their names.

        Autocast makes the same copies in every step by two kernels for each; here all are rounded
        by one, and so are their gradients.
        """
        embeddings = [m.weight for m in self.model.modules() if isinstance(m, nn.Embedding)]
        return {
            f"{name}.{key}": weight.detach().bfloat16().requires_grad_()
            for name, module in self.model.named_modules()
            if isinstance(module, (nn.Linear, TransposedLinear))
            for key, weight in module.named_parameters(recurse=False)
            if not any(weight is embedding for embedding in embeddings)
        }

    def _rate(self, step: int) -> float:
        """The learning rate: linear to the warm-up's end and linear to 0, as the Trainer has it."""
        recipe = self.recipe
        rise, steps = recipe.warmup_steps, recipe.steps
        part = step / max(1, rise) if step < rise else (steps - step) / max(1, steps - rise)
        return recipe.optimizer.learning_rate * max(0.0, part)

    def _adamw(self) -> torch.optim.Optimizer:
        chosen = self.recipe.optimizer
        decays = set(decay_parameter_names(self.model))
        parameters = dict(self.model.named_parameters())
        groups: list[dict[str, Any]] = [
            {"params": [p for n, p in parameters.items() if n in decays]},
            {"params": [p for n, p in parameters.items() if n not in decays], "weight_decay": 0.0},
        ]
        self._rate_now = torch.zeros((), device=self.device)
        return torch.optim.AdamW(
            groups,
            lr=self._rate_now,
            betas=(chosen.beta1, chosen.beta2),
            eps=chosen.epsilon,
            weight_decay=chosen.weight_decay,
            fused=True,
            capturable=self.device.type == "cuda",
        )

    def step(self) -> None:
        """One step on whatever stream is current; nothing waits for the device."""
        ids = self._tokens[self._starts[self._step][0] + self._within].long()
        self._rate_now.copy_(self._rates[self._step][0])
        self._optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            wholes = [self.model.get_parameter(name) for name in self._halves]
            halves = list(self._halves.values())
            copy_all(halves, wholes)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._is_half):
            inputs = {"input_ids": ids, "labels": ids}
            loss = torch.func.functional_call(self.model, self._halves, (), inputs).loss
        loss.backward()
        gradients = [torch.empty_like(whole) for whole in wholes]
        copy_all(gradients, [half.grad for half in halves if half.grad is not None])
        for whole, half, gradient in zip(wholes, halves, gradients, strict=True):
            whole.grad, half.grad = gradient, None
        limit = self.recipe.optimizer.clip_norm or math.inf
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self._optimizer.step()
        record = torch.stack([loss.detach(), norm]).float()
        self._records.index_copy_(0, self._step, record[None])
        self._step += 1

    def capture(self) -> None:
        """Makes `advance` a replay; the weights are then as they were."""
        self.advance: Callable[[], None] = self.step
        if self.device.type != "cuda":
            return
        before = {name: value.clone() for name, value in self.model.state_dict().items()}
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                self.step()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            self.step()
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                value.copy_(before[name])
            for state in self._optimizer.state.values():
                for value in state.values():
                    value.zero_()
        self._step.zero_()
        self._records.fill_(math.nan)
        torch.cuda.synchronize(self.device)

        def replay() -> None:
            with torch.cuda.stream(self._stream):
                graph.replay()

        self.advance = replay

    def finish(self) -> None:
        """Writes the records of a run that came to its end; the first NaN means it diverged."""
        folder, recorder, recipe = self.plan.folder, self._recorder, self.recipe
        steps, records = recipe.steps, self._records.cpu()
        finite = bool(records.isfinite().all())
        for step, (loss, norm) in enumerate(records, start=1):
            recorder.add_losses(loss, loss, None, weight=0.0)
            recorder.finish_step()
            if step % recipe.logging.every_steps == 0 or step == steps:
                rate = self._rate(step - 1)
                recorder.write_training(step, learning_rate=rate, gradient_norm=norm.item())
        if finite:
            model, tokens = self.model, self._data.validation
            context, most = recipe.model.context_length, recipe.evaluation.final_tokens
            measured = measure_loss(
                model,
                tokens,
                validation_windows(tokens, context, max_tokens=most),
                token_bytes=self._data.token_bytes,
                context_length=context,
                batch_tokens=BATCH_TOKENS,
                end_mark=self._data.tokenizer.eos_token_id,
            )
            recorder.write_validation(steps, measured, model.norm_discrepancy())
            few = recipe.evaluation.tokens
            gap = norm_gap(
                model, self._data, context_length=context, max_tokens=few, batch_tokens=BATCH_TOKENS
            )
            write_evaluation(folder, measured, gap=gap)
        recorder.close()
        folder.seal({"metrics.jsonl": recorder.metrics_sha256})
        status = "finished" if finite else "diverged"
        folder.update(steps_done=steps, seconds=round(recorder.seconds, 3), status=status)


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copies tensors to others of any type, by one kernel on a GPU."""
    if targets:
        torch._foreach_copy_(targets, sources)


class Texts:
    """Prepared texts, each on the device once.

    Args:
        folders: of `prepare_data`.
        device: where the training splits go.
    """

    def __init__(self, folders: Sequence[Path], device: str) -> None:
        self._found: dict[tuple[str, int], tuple[PreparedData, Tensor]] = {}
        for folder in folders:
            data = open_prepared_data(folder, context_length=128)
            tokens = torch.from_numpy(data.train.astype("int32")).to(device)
            self._found[data.manifest.name, data.manifest.vocabulary] = data, tokens

    def of(self, cell: Cell) -> tuple[PreparedData, Tensor]:
        """The text of a run.

        Raises:
            ValueError: no folder was prepared of it.
        """
        wanted = Path(cell.recipe.data.source).name, cell.recipe.data.vocabulary
        if wanted not in self._found:
            raise ValueError(
                f"networks: expected a folder prepared of {wanted[0]!r} with a vocabulary of "
                f"{wanted[1]:,}, got {sorted(self._found)}: name it by --prepared"
            )
        return self._found[wanted]


def train(cells: Sequence[Cell], texts: Texts, output: Path, end: float) -> float | None:
    """Trains cells side by side.

    Returns:
        seconds per run and step; None where the time ended before.
    """
    begun = time.time()
    runs = [CapturedRun(cell, *texts.of(cell), output) for cell in cells]
    for run in runs:
        run.capture()
    ready, done = time.time(), 0
    most = max(run.recipe.steps for run in runs)
    while done < most:
        for _ in range(min(STRIDE, most - done)):
            for run in runs:
                if done < run.recipe.steps:
                    run.advance()
            done += 1
        if runs[0].device.type == "cuda":
            torch.cuda.synchronize(runs[0].device)
        if time.time() > end:
            return None
    taken = time.time() - ready
    for run in runs:
        run.finish()
    print(
        f"{len(runs)} runs of {most} steps: made in {ready - begun:.1f} s, "
        f"trained in {taken:.1f} s, "
        f"{1000 * taken / most / len(runs):.2f} ms a step, ended in "
        f"{time.time() - ready - taken:.1f} s",
        flush=True,
    )
    return (time.time() - begun) / most / len(runs)


def batches(cells: Sequence[Cell], jobs: int) -> Iterator[list[Cell]]:
    """Cells that run together, the longest first: what is lost at the end is short."""
    for steps in sorted({cell.recipe.steps for cell in cells}, reverse=True):
        alike = [cell for cell in cells if cell.recipe.steps == steps]
        yield from (alike[first : first + jobs] for first in range(0, len(alike), jobs))


def by_row(plan: TargetPlan, output: Path) -> str:
    """Rows with the perplexities of their runs, and of the trials of their rates."""
    lines = []
    for row, cells in plan.cells_by_row.items():
        judged = " ".join(f"{cell.perplexity(output):.2f}" for cell in cells)
        tried = "; ".join(
            f"{rate:g}: " + " ".join(f"{cell.perplexity(output):.2f}" for cell in cells)
            for rate, cells in plan.trials.get(row, {}).items()
        )
        lines.append(f"{row:34} {judged or '-':24} rates {tried}")
    return "\n".join(lines)


def pack(archive: Path, output: Path) -> None:
    """Writes runs/TARGET/cells: the folders of runs that ended, without checkpoints and weights."""
    written = archive.with_name(f"{archive.name}.writing")
    with tarfile.open(written, "w:xz") as file:
        for run in sorted((output / "cells").glob("*/*/run.json")):
            if RunFolder(run.parent).info().status not in ("finished", "diverged"):
                continue
            for path in sorted(run.parent.rglob("*")):
                if path.is_file() and (path.suffix in KEPT or path.name == "SHA256SUMS"):
                    file.add(path, path.relative_to(output.parents[1]).as_posix())
    written.replace(archive)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--budget", type=float, default=240, help="seconds")
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--prepared", type=Path, nargs="+", required=True)
    parser.add_argument("--output", type=Path, help="default: runs/ and the first target")
    parser.add_argument("--archive", type=Path, help="runs of before and after")
    parser.add_argument("--set", action="append", default=[], help="as of benchmarks.paper")
    chosen = parser.parse_args()
    end, output = time.time() + chosen.budget, chosen.output or Path("runs", chosen.targets[0])
    output = ROOT / output
    if chosen.archive and chosen.archive.exists():
        with tarfile.open(chosen.archive) as file:
            file.extractall(ROOT, filter="data")
    texts = Texts(chosen.prepared, chosen.device)
    in_time, pace = True, 0.0
    while in_time:
        plans = [
            plan_target(target, "mini", settings=chosen.set, output=output)
            for target in chosen.targets
        ]
        left = [cell for cell in unique_cells(plans) if not cell.is_done(output)]
        if not left:
            break
        for batch in batches(left, chosen.jobs):
            steps = sum(cell.recipe.steps for cell in batch)
            found = None
            if time.time() + pace * steps < end:  # else a shorter batch may fit
                found = train(batch, texts, output, end)
                torch.cuda.empty_cache()
                if chosen.archive:
                    pack(chosen.archive, output)
            pace = found or pace
            in_time = in_time and found is not None
    for plan in plans:
        print(by_row(plan, output))
    counts = Counter(cell.status(output) for cell in unique_cells(plans))
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 0 if in_time else 2


if __name__ == "__main__":
    sys.exit(main())
