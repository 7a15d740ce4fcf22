"""`aero private`: trained networks run between two parties under SecretFlow SPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aero.cli.arguments import AsJson, settings
from aero.cli.errors import end_on_termination, note, one_line_errors, say

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from aero.private.compute.calls import Call
    from aero.private.parties.events import Event

_MOST_PROMPT_BYTES = 1 << 24

Source = Annotated[
    Path,
    typer.Argument(metavar="RUN_OR_EXPORT", help="Run folder, or folder from `aero export`."),
]
PrivateOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="private_weights=false, one_bit_product_error=true, exp_squarings=5, exp_clip=false, "
        "broadcast_reciprocal=false, client_one_hot=false, last_token_head=false, "
        "largest_product=4000000, fold_score_scale=true, reveal=top-k, top_k=5, argmax=false, "
        "fraction_bits=20, threads=4, or a field of SPU such as fxp_div_goldschmidt_iters=1 "
        "(aero.private.PrivateSettings explains them); may be repeated.",
    ),
]
Protocol = Annotated[
    str | None,
    typer.Option(
        help="cheetah: two parties (default). semi2k: two and a dealer who could read all, in one "
        "process alone. aby3: three, of whom no two may join."
    ),
]
Prompt = Annotated[str | None, typer.Option(help="Text to continue; other users can see it.")]
PromptFile = Annotated[
    Path | None,
    typer.Option(help="File with the text, to its last character; -: standard input."),
]
PromptTokens = Annotated[
    str | None, typer.Option(metavar="N,N,...", help="The text as token numbers.")
]
Prompts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="Text to continue; other users can see it. Repeated: several side by side, of equally "
        "many tokens.",
    ),
]
PromptsTokens = Annotated[
    list[str] | None,
    typer.Option(metavar="N,N,...", help="A text as token numbers; may be repeated as well."),
]

Machine = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.json",
        help="Predict seconds too, with the file of `aero private calibrate` from this machine.",
    ),
]


def run(
    source: Source,
    prompt: Prompts = None,
    prompt_file: PromptFile = None,
    prompt_tokens: PromptsTokens = None,
    tokens: Annotated[
        int, typer.Option(help="How many tokens to compute of each.", min=1, max=10**6)
    ] = 1,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Folder with tokenizer.json; default: the run's, or in the export."),
    ] = None,
    set_: PrivateOptions = None,
    link: Annotated[
        str,
        typer.Option(
            help="memory: all parties in one process; tcp: a process each, on this machine; a "
            "network such as wan-400mbps: over a link of its rate and delay, which needs root."
        ),
    ] = "memory",
    protocol: Protocol = None,
    machine: Machine = None,
    as_json: AsJson = False,
) -> None:
    """Continues prompts privately; shows logits, tokens and bytes next to the expected ones.

    The cost is said before it starts.
    """
    from aero.private.party_errors import PartyError

    with one_line_errors(ValueError, OSError, PartyError), exported(source) as folder:
        from aero.network.description import layer_count
        from aero.network.files import read_network
        from aero.private.environment import find_private_python
        from aero.private.measuring.conversation_cost import ConversationCost
        from aero.private.measuring.run_reports import run_report
        from aero.private.parties.job import check_batch, check_runnable, check_tokens
        from aero.private.parties.memory import check_memory, in_slices
        from aero.private.parties.two_processes import generate_over

        end_on_termination()
        check_machine(machine, link)
        network = read_network(folder)
        check_runnable(network.description)
        known = find_tokenizer(tokenizer, source)
        prompts = prompts_numbers(prompt, prompt_file, prompt_tokens, known)
        for numbers in prompts:
            check_tokens(numbers, tokens, network.description)
        chosen = private_settings(set_, protocol)
        check_batch(prompts, chosen)
        length, sizes = len(prompts[0]), {"parties": chosen.parties, "sequences": len(prompts)}
        chosen = in_slices(network.description, chosen, length, **sizes)
        check_memory(network.description, chosen, length, **sizes)
        python = find_private_python()
        cost = ConversationCost(network.description, chosen, len(prompts))
        note(cost.to_text(length, tokens, tokens, chosen.parties))
        progress = shown_progress(layer_count(network.description))
        given: Any = prompts if len(prompts) > 1 else prompts[0]
        found = generate_over(link, folder, given, tokens, chosen, progress, python)
        report = run_report(
            network, prompts, chosen, found, link, str(machine) if machine else None
        )
        if as_json:
            say(json.dumps(report.to_dict(), indent=2))
        else:
            say(report.to_text(None if known is None else known.decode))


def check_machine(machine: Path | None, link: str) -> None:
    """Before anything runs.

    Raises:
        ValueError: the file holds no machine, or both parties are one process, which have
            no rates.
    """
    if machine is None:
        return
    from aero import mpc

    if machine.suffix != ".json":
        raise ValueError(f"private: --machine must end with .json, got {machine}")
    mpc.network_profile(str(machine))
    mpc.compute_profile(str(machine))
    if link == "memory":
        raise ValueError(
            "private: --machine was calibrated between two processes, so --link must be tcp or a "
            "network, got memory"
        )


@contextmanager
def exported(source: Path) -> Iterator[Path]:
    """The folder of an export; of a run a temporary one."""
    if (source / "network.json").is_file():
        yield source
        return
    saved = source / "model"
    if not (saved / "config.json").is_file():
        raise ValueError(
            f"private: {source} holds no network (no network.json, no model/config.json); give a "
            "finished run or a folder that `aero export` wrote"
        )
    from aero.export import export_weights
    from aero.private.temporary import temporary_folder
    from aero.saved.loading import load_saved_network

    with temporary_folder() as folder:
        model = load_saved_network(saved, local_files_only=True)
        yield export_weights(model, folder)


def chosen_settings(given: list[str] | None, protocol: str | None = None, **own: Any) -> Any:
    """Settings from FIELD=VALUE. Commands do what is cheapest and changes no token that is made.

    The client makes the one-hot rows of its own tokens, the head computes the last position, under
    Cheetah the server multiplies by its weights in the clear, and under SEMI2K products are small
    enough to keep what is opened of their weights, unless FIELD=VALUE says otherwise.

    Args:
        given: of --set.
        protocol: of --protocol.
        **own: the command's defaults.

    Raises:
        ValueError: the protocol is given twice, or a setting is wrong.
    """
    from aero.mpc.generation import PRIVATE_STACK, private_fields
    from aero.private.settings import STACKS, PrivateSettings

    found = {**own, **settings(given)}
    if protocol is not None and found.setdefault("protocol", protocol) != protocol:
        raise ValueError(
            f"private: --protocol {protocol} and protocol={found['protocol']} differ; give one"
        )
    usual = private_fields(STACKS.get(found.get("protocol", ""), PRIVATE_STACK))
    return PrivateSettings.from_dict({**usual, **found})


def private_settings(given: list[str] | None, protocol: str | None = None) -> Any:
    """Settings from FIELD=VALUE; by default half of the processors for each party, all logits.

    Raises:
        ValueError: nothing that could be compared with the plaintext's is revealed.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    found = chosen_settings(given, protocol, threads=threads, reveal="all")
    if found.reveal not in {"all", "last-logits"}:
        raise ValueError(
            "private: run compares logits, so reveal must be all or last-logits, got "
            f"{found.reveal}"
        )
    return found


def find_tokenizer(given: Path | None, source: Path) -> Tokenizer | None:
    """The tokenizer of a network, if there is one next to it."""
    from aero.saved.tokenizer import read_tokenizer

    folders = [given] if given is not None else [source, source / "model"]
    for folder in folders:
        if (folder / "tokenizer.json").is_file():
            return read_tokenizer(folder)
    if given is not None:
        raise ValueError(f"private: --tokenizer must be a folder with tokenizer.json, got {given}")
    return None


def prompts_numbers(
    texts: list[str] | None,
    file: Path | None,
    numbers: list[str] | None,
    known: Tokenizer | None,
) -> list[list[int]]:
    """The tokens of each prompt."""
    if texts and file is None and not numbers:
        return [prompt_numbers(text, None, None, known) for text in texts]
    if numbers and file is None and not texts:
        return [prompt_numbers(None, None, each, known) for each in numbers]
    given = texts[0] if texts else None, file, numbers[0] if numbers else None
    return [prompt_numbers(*given, known)]


def prompt_numbers(
    prompt: str | None,
    prompt_file: Path | None,
    prompt_tokens: str | None,
    known: Tokenizer | None,
) -> list[int]:
    """The tokens of a prompt.

    Raises:
        ValueError: not exactly one prompt, no tokenizer, or characters that it does not know.
    """
    if [prompt, prompt_file, prompt_tokens].count(None) != 2:
        raise ValueError(
            "private: exactly one of --prompt, --prompt-file and --prompt-tokens must be given"
        )
    if prompt_tokens is not None:
        try:
            return [int(number) for number in prompt_tokens.split(",")]
        except ValueError:
            raise ValueError(
                f"private: --prompt-tokens must be integers with commas, got {prompt_tokens!r}"
            ) from None
    if prompt_file is not None:
        prompt = _text(prompt_file)
    assert prompt is not None
    if known is None:
        raise ValueError(
            "private: a text needs the network's tokenizer, and none is next to it; give "
            "--tokenizer FOLDER or --prompt-tokens"
        )
    numbers: list[int] = known.encode(prompt).ids
    _check_characters(prompt, numbers, known)
    return numbers


def _text(path: Path) -> str:
    """The text of a file, or of standard input; no line end is taken away."""
    from aero.reading import read_bytes

    standard_input = str(path) == "-"
    content = read_bytes("/dev/stdin" if standard_input else path, _MOST_PROMPT_BYTES)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"private: --prompt-file must be UTF-8, got {error}") from None


def _check_characters(prompt: str, numbers: Sequence[int], known: Tokenizer) -> None:
    decode: Callable[[Sequence[int]], str] = known.decode
    if decode(numbers) == prompt:
        return
    for place, character in enumerate(prompt):
        if decode(known.encode(character).ids).strip() != character.strip():
            raise ValueError(
                f"private: the network's tokenizer does not know {character!r}, character "
                f"{place + 1} of the prompt"
            )


def shown_progress(layers: int) -> Callable[[int, Call], None]:
    """One line on standard error for each piece that has run."""

    def show(index: int, call: Call) -> None:
        sent = call.traffic.comm_bytes / 1e6
        of = f" of {layers}" if call.name.startswith("layer") else ""
        before = "" if call.name in {"set-up", "weights"} else f"token {index + 1}: "
        note(f"{before}{call.name}{of}: {sent:.2f} MB, {call.seconds:.1f} s")

    return show


def note_of_server(event: Event) -> None:
    """What a client is told of the server that it waits for, and of its run's padding."""
    from aero.private.parties.events import Place, Unpadded

    if isinstance(event, Place):
        note(f"the server is busy: place {event.place}")
    elif isinstance(event, Unpadded):
        note(f"not padded: {event.reason}")
