"""`aero show`: where a trained network looks in a text, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from aero.cli.errors import note, one_line_errors, say
from aero.cli.numbers import whole


def show(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A finished run, or the folder of a network.")
    ],
    text: Annotated[str, typer.Option(help="The text that the network reads.")],
    output: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Default RUN/show.html.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(help="Tokens of the text that are shown.", callback=whole(1, 64))
    ] = 24,
    browse: Annotated[
        bool, typer.Option("--browse/--no-browse", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Shows tokens, the attention and entropy of every head and the private cost of a token."""
    with one_line_errors(ValueError, OSError):
        from aero.atomic_files import write_bytes_atomically
        from aero.report.show_page import show_page
        from aero.train.errors import disk_errors
        from aero.train.loading import load_saved_network
        from aero.train.samples import look_at
        from aero.train.tokenizer import load_tokenizer

        folder = run / "model" if (run / "model").is_dir() else run
        if not (folder / "config.json").is_file():
            raise ValueError(f"show: expected a finished run or a network's folder, got {run}")
        tokenizer = load_tokenizer(folder)
        model: Any = load_saved_network(folder)
        tokens, attention = look_at(model, tokenizer, text, most_tokens=max_tokens)
        if len(tokens) == max_tokens:
            note(f"show: the page has the first {max_tokens} tokens; --max-tokens shows more")
        path = output or run / "show.html"
        with disk_errors("the page", path, "show again", command="show"):
            path.parent.mkdir(parents=True, exist_ok=True)
            content = show_page(model.config.spec, tokens, attention, name=run.name)
            write_bytes_atomically(path, content.encode())
        say(f"page: {path}")
        if browse:
            typer.launch(path.resolve().as_uri())
