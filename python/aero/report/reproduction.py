"""The paper's tables and figures beside ours, as files."""

import io
import math
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from aero.analysis.figures import stepwise_savings
from aero.atomic_files import write_bytes_atomically, write_json_atomically
from aero.mpc import Reproduction, SavingStep

__all__ = ["savings_picture", "write_reproduction"]


def write_reproduction(found: Reproduction, output_dir: str | Path) -> list[Path]:
    """Writes `reproduction.txt`, `reproduction.json` and one PNG per figure.

    Args:
        found: What `aero.mpc.reproduce` returned.
        output_dir: A folder; made if it is missing.

    Returns:
        The files.

    Raises:
        OSError: The folder cannot be written.

    Example:
        >>> import tempfile
        >>> from aero import mpc
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sorted(path.name for path in write_reproduction(mpc.reproduce(), folder))
        ['figure-1.png', 'figure-15.png', 'reproduction.json', 'reproduction.txt']
    """
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "reproduction.txt", folder / "reproduction.json"]
    write_bytes_atomically(written[0], f"{found.to_text()}\n".encode())
    write_json_atomically(written[1], found.to_dict())
    for title, steps in found.figures.items():
        name = title.partition(":")[0].lower().replace(" ", "-")
        written.append(folder / f"{name}.png")
        write_bytes_atomically(written[-1], savings_picture(title, steps))
    return written


def savings_picture(title: str, steps: tuple[SavingStep, ...]) -> bytes:
    """Returns a PNG with two panels: GB and minutes of every step, ours and the paper's."""
    figure = Figure(figsize=(11.5, 0.42 * len(steps) + 1.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    names = [
        step.label if step.perplexity is None else f"{step.label} (ppl {step.perplexity:.2f})"
        for step in steps
    ]
    stepwise_savings(
        names,
        [step.gigabytes for step in steps],
        published=[_or_nan(step.paper_gigabytes) for step in steps],
        unit="GB, both parties",
        title=title,
        axes=left,
    )
    stepwise_savings(
        names,
        [step.minutes for step in steps],
        published=[_or_nan(step.paper_minutes) for step in steps],
        unit="minutes on the paper's test bed",
        axes=right,
    )
    right.set_yticklabels([])
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
