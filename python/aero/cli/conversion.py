"""`aero convert`: a trained network of GPT-2, Pythia or ours as the network of a label."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from aero.cli.errors import note, one_line_errors, say
from aero.cli.numbers import decimal, whole


def convert(
    source: Annotated[
        str,
        typer.Argument(help="Run folder, folder of a saved AERO, GPT-2 or Pythia, or hub name."),
    ],
    label: Annotated[str, typer.Option(help="Network to make, such as 'SM+ScFuFFN_i6'.")],
    output: Annotated[Path | None, typer.Option(help="Folder for the new network.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the changes and write nothing.")
    ] = False,
    context_length: Annotated[
        int | None,
        typer.Option(help="T, shorter than the network's own.", callback=whole(1, 1 << 24)),
    ] = None,
    untie: Annotated[bool, typer.Option("--untie", help="Give the head its own matrix.")] = False,
    absorb_ffn: Annotated[
        bool, typer.Option("--absorb-ffn", help="Then multiply fused FFNs into attention and head.")
    ] = False,
    max_condition: Annotated[
        float,
        typer.Option(
            help="Largest condition number that --absorb-ffn accepts.", callback=decimal(1, 1e16)
        ),
    ] = 100.0,
) -> None:
    """Converts a network to a label and prints each step, and whether it is exact."""
    with one_line_errors(ValueError, OSError):
        if output is None and not dry_run:
            raise ValueError("convert: give --output FOLDER, or --dry-run to see the changes")
        import aero.conversion
        from aero.train.errors import disk_errors
        from aero.train.loading import load_saved_network
        from aero.train.run_folder import RunFolder

        run = RunFolder(source)
        path = str(run.model) if run.exists() else source
        options: dict[str, Any] = {"context_length": context_length}
        if untie:
            options["tied_embeddings"] = False
        model = load_saved_network(path)
        say(str(aero.conversion.convert(model, label, dry_run=True, **options)))
        if dry_run and not absorb_ffn:
            return
        converted = aero.conversion.convert(model, label, **options)
        if absorb_ffn:
            absorption = aero.conversion.absorb_ffn(converted, max_condition=max_condition)
            converted = absorption.model
            say(f"\n{absorption}")
        if output is not None and not dry_run:
            with disk_errors("the network", output, "convert again", command="convert"):
                _save(converted, path, output)


def _save(model: Any, path: str, output: Path) -> None:
    """Writes the network and, where the source has one, its tokenizer."""
    from transformers.utils import logging

    from aero.train.tokenizer import load_tokenizer

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model.save_pretrained(output)
    note(f"wrote {output}")
    # Without its files transformers makes up an empty tokenizer for GPT-2.
    if Path(path).is_dir() and not list(Path(path).glob("tokenizer*")):
        note(f"{path} has no tokenizer to copy")
        return
    load_tokenizer(path).save_pretrained(output)
