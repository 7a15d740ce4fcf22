"""`aero convert`, `export`, `show`, and `prune score`: commands for one network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from aero.cli.arguments import no_nan
from aero.cli.errors import note, one_line_errors, say


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
        typer.Option(help="T, tokens; shorter than the network's own.", min=1, max=1 << 24),
    ] = None,
    untie: Annotated[bool, typer.Option("--untie", help="Give the head its own matrix.")] = False,
    absorb_ffn: Annotated[
        bool, typer.Option("--absorb-ffn", help="Then multiply fused FFNs into attention and head.")
    ] = False,
    max_condition: Annotated[
        float | None,
        typer.Option(
            help="Largest condition number that --absorb-ffn accepts; default 100.",
            min=1,
            max=1e16,
            callback=no_nan,
        ),
    ] = None,
) -> None:
    """Converts a network to a label and prints each step, and whether it is exact."""
    with one_line_errors(ValueError, OSError):
        if output is None and not dry_run:
            raise ValueError("convert: give --output FOLDER, or --dry-run to see the changes")
        if max_condition is not None and not absorb_ffn:
            raise ValueError("convert: --max-condition is for --absorb-ffn, got it alone")
        import aero.conversion
        from aero.internals.atomic_files import require_no_run
        from aero.internals.errors import disk_errors
        from aero.saved.loading import load_saved_network

        path = str(_network_in(Path(source)))
        if output is not None:
            require_no_run(output, "convert")
            _require_another(path, output, "convert")
        options: dict[str, Any] = {"context_length": context_length}
        if untie:
            options["tied_embeddings"] = False
        model = load_saved_network(path)
        say(str(aero.conversion.convert(model, label, dry_run=True, **options)))
        if dry_run and not absorb_ffn:
            return
        converted = aero.conversion.convert(model, label, **options)
        if absorb_ffn:
            absorption = aero.conversion.absorb_ffn(converted, max_condition=max_condition or 100.0)
            converted = absorption.model
            say(f"\n{absorption}")
        if output is not None and not dry_run:
            with disk_errors("the network", output, "convert again", command="convert"):
                _save(converted, path, output)


def _network_in(source: Path) -> Path:
    """The place of a run's network; of anything else the same."""
    return source / "model" if (source / "run.json").is_file() else source


def _require_another(source: str | Path, output: Path, command: str) -> None:
    if Path(source).exists() and Path(source).resolve() == output.resolve():
        raise ValueError(
            f"{command}: the output must be another folder than the network's, got {output} twice"
        )


def _save(model: Any, path: str, output: Path) -> None:
    """Writes the network and, where the source has one, its tokenizer."""
    from transformers.utils import logging

    from aero.saved.tokenizer import load_tokenizer

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model.save_pretrained(output)
    note(f"wrote {output}")
    # Without its files transformers makes up an empty tokenizer for GPT-2.
    if Path(path).is_dir() and not list(Path(path).glob("tokenizer*")):
        note(f"{path} has no tokenizer to copy")
        return
    load_tokenizer(path).save_pretrained(output)


_TEXT = "The cat sat on the mat because it was tired."


def show(
    networks: Annotated[
        list[str],
        typer.Argument(
            metavar="NETWORK [OTHER]",
            help="Finished runs, folders of Hugging Face decoders or hub names; two are compared.",
        ),
    ],
    text: Annotated[str, typer.Option(help="The text that the networks read.")] = _TEXT,
    output: Annotated[
        Path | None,
        typer.Option(metavar="PAGE", help="Default show.html, in the first run or folder."),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(help="Tokens of the text that are shown.", min=1, max=64)
    ] = 24,
    browse: Annotated[
        bool, typer.Option("--browse/--no-browse", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Shows tokens, the attention and entropy of every head and the private cost of a token."""
    with one_line_errors(ValueError, OSError):
        from aero.internals.atomic_files import write_bytes_atomically
        from aero.internals.errors import disk_errors
        from aero.report.show_page import show_page

        if len(networks) > 2:
            raise ValueError(f"show: expected one network or two, got {len(networks)}")
        seen = _seen(networks, text, max_tokens)
        first = Path(networks[0])
        path = output or (first if first.is_dir() else Path()) / "show.html"
        with disk_errors("the page", path, "show again", command="show"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes_atomically(path, show_page(seen).encode())
        say(f"page: {path}")
        if browse:
            typer.launch(path.resolve().as_uri())


def _seen(networks: list[str], text: str, max_tokens: int) -> list[Any]:
    """What the page shows of each network: as many tokens as asked for, as far as they fit."""
    from aero.report.show_page import ShownNetwork, most_tokens
    from aero.saved.loading import load_decoder
    from aero.saved.tokenizer import load_tokenizer
    from aero.train.runs.samples import look_at

    places = [_place(network) for network in networks]
    models: list[Any] = [load_decoder(place) for place in places]
    settings = [model.config for model in models]
    room = most_tokens(sum(one.num_hidden_layers * one.num_attention_heads for one in settings))
    seen = []
    for network, place, model in zip(networks, places, models, strict=True):
        tokens, attention, largest = look_at(
            model, load_tokenizer(place), text, most_tokens=min(max_tokens, room)
        )
        spec = getattr(model.config, "spec", None)
        seen.append(ShownNetwork(Path(network).name, tokens, attention, largest, spec))
    shown_tokens = max(len(one.tokens) for one in seen)
    if shown_tokens == room < max_tokens:
        note(f"show: the page has the first {room} tokens; more would make it too large")
    elif shown_tokens == max_tokens:
        note(f"show: the page has the first {max_tokens} tokens; --max-tokens shows more")
    return seen


def _place(network: str) -> str:
    """The folder of a network, or its name on the hub."""
    folder = Path(network)
    if (folder / "model").is_dir():
        folder = folder / "model"
    if Path(network).exists() and not (folder / "config.json").is_file():
        raise ValueError(f"show: expected a finished run or a network's folder, got {network}")
    return str(folder) if folder.is_dir() else network


def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="Run folder, or folder of a saved AERO, GPT-2, Pythia, Llama or the like.",
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
        from aero.families.values import EXPORTED
        from aero.internals.atomic_files import require_no_run
        from aero.internals.errors import disk_errors
        from aero.saved.loading import load_saved_network, require_supported

        require_no_run(output, "export")
        saved = _network_in(source)
        _require_another(saved, output, "export")
        if not (saved / "config.json").is_file():
            raise ValueError(
                f"export: {saved} holds no network (no config.json); give a finished run or a "
                "folder that save_pretrained wrote"
            )
        require_supported(saved, others=() if remote_code else EXPORTED)
        model = load_saved_network(saved, as_it_is=True)
        write = export_remote_code if remote_code else export_weights
        with disk_errors("the network", output, "export again", command="export"):
            note(f"wrote {write(model, output)}")


Bound = Annotated[
    float,
    typer.Option(
        "--max-loss-increase",
        help="How much worse it may be, nats per token.",
        min=0,
        max=100,
        callback=no_nan,
    ),
]


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run.")],
    max_loss_increase: Bound = 0.02,
    max_tokens: Annotated[
        int, typer.Option(help="Validation tokens per measurement.", min=1, max=10**15)
    ] = 32_768,
) -> None:
    """Measures the loss of a trained network without each FFN; nothing is trained."""
    with one_line_errors(ValueError):
        from aero.conversion import select_prunable_ffns
        from aero.train.runs.run_folder import RunFolder
        from aero.train.runs.run_results import open_run, validation_measure

        model, data = open_run(RunFolder(run))
        measure = validation_measure(data, max_tokens=max_tokens)
        scores = select_prunable_ffns(model, measure, max_loss_increase=max_loss_increase)
        say(scores.to_text())
