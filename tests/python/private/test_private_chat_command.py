"""`aero private chat`: its price, its answers, what is said between them, and its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aero
from aero.cli.private import chosen_settings
from aero.cli.private_talk import Lines, TalkShown
from aero.network.files import read_description
from aero.private import environment
from aero.private.links.keys import CERTIFICATE
from aero.private.measuring.conversation_cost import ConversationCost
from aero.private.parties.conversation import Conversation
from aero.private.parties.events import Sliced
from aero.private.prediction import predicted_costs, weight_elements
from aero.private.settings import PrivateSettings
from aero.saved.tokenizer import save_tokenizer, train_tokenizer

from ..export.conftest import trained
from .pretending import People, pretending_python
from .test_private_command import Pretender, piece


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(aero.export_weights(trained("SM+ScFuFFN"), tmp_path_factory.mktemp("export")))
    save_tokenizer(train_tokenizer(["to be or not to be"] * 4, 256), folder, context_length=32)
    return folder


def chat(folder: Path, *arguments: Any, said: str = "", **environ: str) -> Any:
    command = [sys.executable, "-m", "aero.cli", "private", "chat", str(folder)]
    return subprocess.run(
        [*command, *map(str, arguments)],
        input=said,
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        timeout=120,
    )


def passed(index: int, token: Any) -> list[dict[str, Any]]:
    return [piece(index, "layer 0"), {"event": "pass", "index": index, "token": token}]


def scripted(folder: Path, *tokens: Any) -> dict[str, str]:
    """The environment of a worker that gives these tokens, whatever it is told to read."""
    folder.mkdir()
    pretender = Pretender(folder)
    events = [piece(0, "set-up"), piece(0, "weights", 0, 10)]
    for index, token in enumerate(tokens):
        events += passed(index, token)
    pretender.script(*events, {"event": "done"})
    return {environment.VARIABLE: str(pretender.python)}


def test_answers_are_written_as_they_end_with_the_cost_of_each_token(
    export: Path, tmp_path: Path
) -> None:
    worker = scripted(tmp_path / "worker", 84, 69, 70, 71)
    given = ("--prompt", "to be", "--tokens", 2, "--yes")
    done = chat(export, *given, said="or\n", **worker)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2  # two answers of two tokens
    told = done.stderr.splitlines()
    each = [line for line in told if "left:" in line]
    assert len(each) == 4
    # Each pretended piece sends 4,000 bytes.
    assert all("0.00 MB" in line for line in each)
    assert "left: 1 tokens" in each[0] and "left: 0 tokens, 0.0 MB" in each[1]
    assert any(line.startswith("set-up: 0.00 MB") for line in told)
    assert any("the weights' shares" in line for line in told)
    reading = next(line for line in told if line.startswith("reading"))
    assert reading.startswith(f"reading {1 + 2} tokens: ")


def test_everything_is_one_json_value_where_asked_for(export: Path, tmp_path: Path) -> None:
    worker = scripted(tmp_path / "worker", 9, 7, 5)
    given = ("--prompt-tokens", "1,2,3", "--tokens", 2, "--stop", ")", "--json", "--yes")
    done = chat(export, *given, said="\n", **worker)
    found = json.loads(done.stdout)
    # The first answer ends at its stop token, and the empty line lets it go on.
    assert found["answers"] == [[9], [7, 5]]
    assert found["read"] == 3 + 1 + 1
    assert [each["comm_bytes"] for each in found["tokens"]] == [4000] * 3


def test_several_prompts_go_side_by_side_and_each_ends_at_its_own_stop(
    export: Path, tmp_path: Path
) -> None:
    worker = scripted(tmp_path / "worker", [9, 7], [5, 9])
    given = ("--prompt", "to be", "--prompt", "be to", "--stop", ")", "--tokens", 3, "--yes")
    done = chat(export, *given, **worker)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    job = json.loads((tmp_path / "worker" / "started.json").read_text())["job"]
    assert [len(place) for place in job["tokens"]] == [2] * 5
    told = done.stderr.splitlines()
    # The price of both stands before the first piece.
    described, settings = read_description(export), chosen_settings(None)
    price = ConversationCost(described, settings, 2)
    whole = price.reading(5).comm_bytes + price.answering(2, 5).comm_bytes
    [said] = [i for i, line in enumerate(told) if line.startswith("2 answers of 3 tokens")]
    assert f"{whole / 1e6:,.1f} MB at most" in told[said]
    assert said < next(i for i, line in enumerate(told) if line.startswith("set-up"))
    each = [line for line in told if "left:" in line]
    assert [("1: " in line, "2: " in line) for line in each] == [(True, True), (False, True)]
    found = json.loads(chat(export, *given, "--json", **worker).stdout)
    assert found["answers"] == [[9], [7, 9]] and found["read"] == 5 + 1
    assert [one["comm_bytes"] for one in found["tokens"]] == [4000] * 2


def test_the_first_line_is_the_prompt_where_none_is_given(export: Path, tmp_path: Path) -> None:
    worker = scripted(tmp_path / "worker", 9)
    done = chat(export, "--tokens", 1, "--yes", said="to be\n", **worker)
    assert done.returncode == 0, done.stderr
    job = json.loads((tmp_path / "worker" / "started.json").read_text())["job"]
    assert len(job["tokens"]) == 5
    done = chat(export, "--yes", **worker)
    assert done.returncode == 2 and "the prompt is missing" in done.stderr


def test_text_that_does_not_fit_is_refused_and_asked_for_again(
    export: Path, tmp_path: Path
) -> None:
    worker = scripted(tmp_path / "worker", 9, 7)
    given = ("--prompt", "to be", "--tokens", 1, "--json", "--yes")
    done = chat(export, *given, said="be" * 40 + "\nor\n", **worker)
    assert "the context has room for 26 more tokens, got 80" in done.stderr
    assert json.loads(done.stdout)["answers"] == [[9], [7]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "nobody can be asked whether to begin; give --yes"),
        (["--stop", "to be or"], "--stop must be one token, got 'to be or' of 8"),
        (["--tokens", "0"], "--tokens"),
        (["--connect", "192.0.2.1:9", "--yes"], "so --keys must be given"),
        (["--prompt", "or not", "--yes"], "must have equally many tokens, got 5 and 6"),
        (["--prompt", "be to", "--most", "1", "--yes"], "--most must be at least 2 for 2 prompts"),
        (["--prompt", "be to", "--set", "reveal=top-k", "--yes"], "reveal must be token"),
        (["--set", "top_k=0"], "top_k must be"),
    ],
)
def test_what_cannot_begin_is_one_line_before_anything_starts(
    arguments: list[str], expected: str, export: Path, tmp_path: Path
) -> None:
    worker = scripted(tmp_path / "worker", 9)
    done = chat(export, "--prompt", "to be", *arguments, **worker)
    assert done.returncode == 2
    assert expected in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "worker" / "started.json").exists()


def test_a_conversation_over_tls_reads_what_is_said_in_one_session(
    serving: Any, people: People, export: Path, tmp_path: Path
) -> None:
    server = serving("ann", queries=20)
    public = tmp_path / "public"
    public.mkdir()
    (public / "network.json").write_bytes((server.job.folder / "network.json").read_bytes())
    certificate = (people.folder / "server" / CERTIFICATE).read_bytes()
    (public / "server.pem").write_bytes(certificate)
    (public / "server.pem").chmod(0o644)
    given = ("--connect", server.address, "--keys", people.folder / "ann", "--prompt-tokens", "5,6")
    python = {environment.VARIABLE: str(pretending_python(tmp_path))}
    done = chat(public, *given, "--tokens", 2, "--most", 4, "--yes", "--json", said="7\n", **python)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["answers"] == [[0, 1], [2, 3]]  # a pretended token is the number of its pass
    assert found["read"] == 2 + 1 + 2 + 1
    assert server.wait_for("client")["new_tokens"] == 4
    server.wait_for("served")
    refused = chat(public, *given, "--most", 17, "--yes", **python)
    assert refused.returncode == 2 and "at most the 16 that are left" in refused.stderr


def test_several_prompts_go_side_by_side_to_a_server(
    serving: Any, export: Path, tmp_path: Path
) -> None:
    server = serving(queries=20)
    python = {environment.VARIABLE: str(pretending_python(tmp_path))}
    prompts = ("--prompt-tokens", "5,6", "--prompt-tokens", "7,8", "--prompt-tokens", "9,10")
    given = ("--connect", server.address, *prompts, "--tokens", 2, "--yes", "--json")
    done = chat(export, *given, "--stop", 99, **python)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["answers"] == [[0, 1]] * 3
    asked = server.wait_for("client")
    assert (asked["prompt_length"], asked["new_tokens"], asked["sequences"]) == (2, 2, 3)
    server.wait_for("served")


def test_slices_of_the_server_are_priced_before_the_start(
    serving: Any, export: Path, tmp_path: Path
) -> None:
    server = serving(settings=chosen_settings(["largest_product=2048"]))
    python = {environment.VARIABLE: str(pretending_python(tmp_path))}
    given = ("--connect", server.address, "--prompt-tokens", "5,6", "--tokens", 1, "--most", 1)
    described, prices = read_description(export), []
    for limit in (0, 2048):
        settings = chosen_settings([f"largest_product={limit}"])
        sent = ConversationCost(described, settings).reading(2).comm_bytes
        prices.append(f"{sent / 1e6:,.1f} MB")
    done = chat(export, *given, "--yes", **python)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "2,048 weights" in line]
    assert len(told) == 1 and prices[1] in told[0]
    # Who was asked is asked again, with their price.
    talk = Conversation([5, 6], 32, answer=1, most=1)
    cost = ConversationCost(described, chosen_settings(None))
    shown = TalkShown(talk, cost, None, Lines(), as_json=True, agreed=False)
    with pytest.raises(ValueError, match="begin again with --set largest_product=2048") as caught:
        shown.event(Sliced(2048))
    assert all(price in str(caught.value) for price in prices)


def test_the_price_before_the_start_is_the_sum_of_its_passes(export: Path) -> None:
    described, settings = read_description(export), PrivateSettings()
    cost = ConversationCost(described, settings)
    whole = predicted_costs(described, 5, settings)
    whole.pop("set-up")
    assert cost.reading(5).comm_bytes == sum(one.comm_bytes for one in whole.values())
    later = [predicted_costs(described, length, settings, 1) for length in (6, 7)]
    expected = sum(c.comm_bytes for one in later for n, c in one.items() if n != "set-up")
    assert cost.answering(2, 5).comm_bytes == pytest.approx(expected)
    text = cost.to_text(5, 3, 9, parties=2)
    assert f"{(whole_bytes := cost.reading(5).comm_bytes) / 1e6:,.1f} MB" in text
    assert f"an answer of 3 tokens: {(whole_bytes + expected) / 1e6:,.1f} MB at most" in text


def test_weights_are_counted_as_often_as_they_are_shared(export: Path) -> None:
    described = read_description(export)
    sizes = {k: np.prod(v["shape"]) for k, v in described["tensors"].items()}
    # The head is the embedding's table again.
    assert weight_elements(described) == sum(sizes.values()) + sizes["token_embedding"]
    private = ConversationCost(described, PrivateSettings(private_weights=True))
    assert private.weights_bytes == 0
