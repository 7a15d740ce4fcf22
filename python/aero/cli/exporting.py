"""`aero export`: trained networks as files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aero.cli.errors import note, one_line_errors


def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_MODEL", help="Run folder, or folder of a saved AERO, GPT-2 or Pythia."
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder to write.")],
    remote_code: Annotated[
        bool,
        typer.Option(
            "--remote-code", help="Write a transformers model with its code, for trust_remote_code."
        ),
    ] = False,
) -> None:
    """Writes plain weights and a description from which any program can compute the logits."""
    with one_line_errors(ValueError, OSError):
        from aero.export import export_remote_code, export_weights
        from aero.train.errors import disk_errors
        from aero.train.loading import load_saved_network
        from aero.train.run_folder import RunFolder

        folder = RunFolder(source)
        saved = folder.model if folder.exists() else source
        if not (saved / "config.json").is_file():
            raise ValueError(
                f"export: {saved} holds no network (no config.json); give a finished run or a "
                "folder that save_pretrained wrote"
            )
        model = load_saved_network(saved, as_it_is=True)
        write = export_remote_code if remote_code else export_weights
        with disk_errors("the network", output, "export again", command="export"):
            note(f"wrote {write(model, output)}")
