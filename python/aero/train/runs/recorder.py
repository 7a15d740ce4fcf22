"""The records of a run: `metrics.jsonl` and the same in TensorBoard, and spectra of FFNs for them.

Between two lines the recorder adds up losses on the device, so that logging costs no
synchronization. The partial sums are part of a checkpoint: a resumed run writes the very lines the
uninterrupted one would have written.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aero.analysis.spectra import describe_spectra, spectrum
from aero.analysis.statistics import nan_counts
from aero.internals.records import as_dict
from aero.internals.run_files import (
    EntropyLine,
    MetricLine,
    MetricsMark,
    RecorderState,
    TrainLine,
    ValidationLine,
)
from aero.models import AeroForCausalLM
from aero.nn import FeedForward
from aero.train.entropy_callback import add_scalars, entropy_scalars, open_board
from aero.train.runs.perplexity import HeldOutLoss
from aero.train.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Spectra = list[dict[str, float | None] | None]

#: Of a record during training: two windows of the demo. Products of tokens are then smaller than
#: those of channels, and a record takes less than 1 % of the steps between two of the demo. Tests
#: hold its processor time below 2 %.
RECORDED_TOKENS = 256

# The penalty is there twice: before its weight, and as the loss has it, nats per predicted token.
_LOSSES = ("loss", "lm_loss", "entropy_loss", "penalty_nats")


class RunRecorder:
    """Collects the losses of steps and writes records.

    Args:
        folder: the run folder.
        device: where losses are added up.
        tokens_per_step: over all processes.
        writes: whether this process writes; under `torchrun` one does.
        tensorboard: whether it writes TensorBoard files too.
        first_step: steps done before; later TensorBoard entries are dropped.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        device: torch.device,
        tokens_per_step: int,
        writes: bool,
        tensorboard: bool,
        first_step: int,
    ) -> None:
        self._folder = folder
        self._tokens_per_step = tokens_per_step
        self._writes = writes
        self._sums = torch.zeros(len(_LOSSES), dtype=torch.float64, device=device)
        self._steps = 0
        self._has_entropy_loss = False
        self._begin = time.monotonic()
        # Of what was written, which is not always what the disk holds later.
        head = folder.metrics_head() if writes else b""
        self._metrics, self._metrics_bytes = hashlib.sha256(head), len(head)
        self._board: SummaryWriter | None = None
        if writes and tensorboard:
            self._board = open_board(folder.tensorboard, first_step=first_step)

    @property
    def seconds(self) -> float:
        """Time of the run so far, without pauses between its parts."""
        return time.monotonic() - self._begin

    @property
    def metrics_sha256(self) -> str:
        """The checksum of all that was written to `metrics.jsonl`."""
        return self._metrics.hexdigest()

    def add_losses(
        self, loss: Tensor, lm_loss: Tensor, entropy_loss: Tensor | None, *, weight: float
    ) -> None:
        """Adds this process's share of one micro-batch's losses, each 0-D.

        Args:
            loss: with the weighted penalty.
            lm_loss: without.
            entropy_loss: the penalty before its weight; None for networks without.
            weight: of the penalty in this step.
        """
        self._has_entropy_loss = entropy_loss is not None
        penalty = torch.zeros_like(loss) if entropy_loss is None else entropy_loss
        parts = [part.detach().double() for part in (loss, lm_loss, penalty)]
        self._sums += torch.stack([*parts, weight * parts[2]])

    def finish_step(self) -> None:
        """Says that an optimizer step's micro-batches are all added."""
        self._steps += 1

    def losses_are_finite(self) -> bool:
        """True if all processes' losses since the last line are finite; the same answer for all."""
        return bool(torch.isfinite(self._sums_of_all()[:3]).all())

    def _sums_of_all(self) -> Tensor:
        sums = self._sums.clone()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(sums)
        return sums

    def write_training(self, step: int, *, learning_rate: float, gradient_norm: float) -> float:
        """Writes the means since the last line and returns that of the loss."""
        means: list[float] = (self._sums_of_all() / max(self._steps, 1)).tolist()
        self._sums.zero_()
        self._steps = 0
        penalties = _LOSSES[2:]
        self._write(
            TrainLine(
                step=step,
                tokens=step * self._tokens_per_step,
                lr=learning_rate,
                grad_norm=gradient_norm,
                seconds=round(self.seconds, 3),
                **{
                    name: mean
                    for name, mean in zip(_LOSSES, means, strict=True)
                    if self._has_entropy_loss or name not in penalties
                },
            )
        )
        return means[0]

    def write_validation(
        self, step: int, measured: HeldOutLoss, norm_discrepancy: float | None
    ) -> None:
        """Writes a validation result; networks without foldable norm have no discrepancy."""
        self._write(
            ValidationLine(
                step=step,
                loss=measured.loss,
                perplexity=measured.perplexity,
                bits_per_byte=measured.bits_per_byte,
                tokens=measured.tokens,
                norm_discrepancy=norm_discrepancy,
            )
        )

    def write_entropies(
        self,
        step: int,
        head_entropy: NDArray[Any],
        *,
        temperatures: list[NDArray[Any]] | None,
        thresholds: NDArray[Any] | None,
        learned: dict[str, list[float]],
        spectra: Spectra | None = None,
    ) -> None:
        """Writes all head entropies and spectra; TensorBoard gets temperatures, thresholds too.

        Args:
            step: optimizer steps done.
            head_entropy: [L, H], nats.
            temperatures: L arrays [H, T].
            thresholds: [L, H].
            learned: scalars of the feed-forward networks, by name.
            spectra: of their activations, per layer; None where they were not measured.
        """
        scalars = entropy_scalars(head_entropy, temperatures=temperatures, thresholds=thresholds)
        layers = spectra or []
        measured = any(found is not None for found in layers)
        self._append(
            EntropyLine(
                step=step,
                head_entropy=[[round(float(head), 6) for head in row] for row in head_entropy],
                nan_counts=nan_counts(head_entropy).tolist(),
                learned=learned,
                ffn_spectra=layers if measured else None,
                frac_collapse=scalars["entropy/frac_collapse"],
                frac_overload=scalars["entropy/frac_overload"],
            )
        )
        if self._board is not None:
            add_scalars(self._board, step, scalars | _spectra_scalars(layers))

    def state(self) -> RecorderState:
        """Returns the state for a checkpoint; collective under `torchrun`."""
        return RecorderState(
            sums=self._sums_of_all().tolist(),
            steps=self._steps,
            has_entropy_loss=self._has_entropy_loss,
            seconds=self.seconds,
            metrics=MetricsMark(self._metrics_bytes, self.metrics_sha256),
        )

    def restore(self, state: RecorderState) -> None:
        """Continues from a checkpoint's `state`; one process takes over the sums of all."""
        if self._writes:
            sums = [float("nan") if value is None else value for value in state.sums]
            # Checkpoints from before the weighted penalty was kept do not know it.
            sums += [float("nan")] * (len(_LOSSES) - len(sums))
            self._sums.copy_(torch.tensor(sums, dtype=torch.float64))
        self._steps = state.steps
        self._has_entropy_loss = state.has_entropy_loss
        self._begin = time.monotonic() - state.seconds

    def close(self) -> None:
        """Writes out the buffer."""
        if self._board is not None:
            self._board.close()

    def _write(self, line: TrainLine | ValidationLine) -> None:
        self._append(line)
        if self._board is not None:
            # Curves are in nats per token: the penalty before its weight would pass for a loss.
            skipped = ("kind", "step", "tokens", "entropy_loss")
            values = as_dict(line)
            scalars = {
                f"{values['kind']}/{name}": value
                for name, value in values.items()
                if name not in skipped and value is not None
            }
            add_scalars(self._board, line.step, scalars)

    def _append(self, line: MetricLine) -> None:
        if self._writes:
            written = self._folder.append_metrics(line)
            self._metrics.update(written)
            self._metrics_bytes += len(written)


def _spectra_scalars(spectra: Spectra) -> dict[str, float]:
    return {
        f"ffn/layer_{layer}/{name}": value
        for layer, found in enumerate(spectra)
        for name, value in (found or {}).items()
        if value is not None
    }


@contextmanager
def watched_spectra(model: AeroForCausalLM, *, most_tokens: int) -> Iterator[Spectra]:
    """Fills a list with the numbers of every layer's FFN, from the next forward pass alone.

    None stands for a layer without FFN, or with one of a single layer, which has no activation.

    Args:
        model: run once inside of the context.
        most_tokens: later ones of the pass are left out.
    """
    layers = model.config.spec.num_layers
    found: Spectra = [None] * layers
    before: dict[int, Any] = {}
    handles = []

    def watch(layer: int, ffn: FeedForward) -> None:
        def see_before(module: Any, args: Any, output: Tensor) -> None:
            if found[layer] is None:
                before[layer] = _spectrum_of(output, most_tokens)

        def see_after(module: Any, args: tuple[Tensor, ...]) -> None:
            if layer in before:
                after = _spectrum_of(args[0], most_tokens)
                found[layer] = describe_spectra(before.pop(layer), after)

        handles.append(ffn.c_fc.register_forward_hook(see_before))
        handles.append(ffn.c_proj.register_forward_pre_hook(see_after))

    for layer, block in enumerate(model.transformer.h):
        for module in block.modules():
            if isinstance(module, FeedForward):
                watch(layer, module)
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _spectrum_of(activations: Tensor, most_tokens: int) -> Any:
    rows = activations.detach().flatten(0, -2)[:most_tokens].float()
    tokens, channels = rows.shape
    with _one_thread():
        rows = rows - rows.mean(dim=0)
        products = (rows.T @ rows if tokens >= channels else rows @ rows.T).cpu()
        if torch.isfinite(products).all():
            return spectrum(torch.linalg.eigvalsh(products).numpy(), channels)
    return spectrum(np.full(len(products), np.nan), channels)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Lets torch compute with one thread, for what is too small for more.

    Beside other work, threads that wait for one another took the twelve decompositions of a record
    from 0.1 s to between 1.1 and 6 s. NumPy has no such switch.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
