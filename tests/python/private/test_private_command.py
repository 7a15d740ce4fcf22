"""`aero private run`: its request, its output, and the errors before anything starts."""

import base64
import json
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from typer.testing import CliRunner

import aero
from aero.cli import app
from aero.cli.private import private_settings
from aero.network.files import read_network
from aero.network.numpy_reader import forward
from aero.private import environment
from aero.private.prediction import predicted_costs
from aero.private.settings import PrivateSettings
from aero.saved.tokenizer import save_tokenizer, train_tokenizer

from ..export.conftest import trained

# Takes the place of the private environment's Python: keeps its input, plays a script.
PRETENDER = """#!{python}
import json, os, sys
from pathlib import Path
folder = Path(__file__).parent
job = json.loads(sys.stdin.readline())
(folder / "started.json").write_text(json.dumps({{"arguments": sys.argv[1:], "job": job}}))
for line in (folder / "script").read_text().splitlines():
    if line == "die":
        print("what the library said last", file=sys.stderr)
        os._exit(3)
    print(line, flush=True)
sys.stdin.read()
"""


class Pretender:
    """A private environment whose worker plays a script."""

    def __init__(self, folder):
        self.folder = folder
        self.python = folder / "python"
        self.python.write_text(PRETENDER.format(python=sys.executable))
        self.python.chmod(self.python.stat().st_mode | stat.S_IXUSR)
        self.script()

    def script(self, *events):
        lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
        (self.folder / "script").write_text("\n".join(lines))

    @property
    def started(self):
        file = self.folder / "started.json"
        return json.loads(file.read_text()) if file.exists() else None


@pytest.fixture
def pretender(tmp_path, monkeypatch):
    folder = tmp_path / "environment"
    folder.mkdir()
    made = Pretender(folder)
    monkeypatch.setenv(environment.VARIABLE, str(made.python))
    return made


@pytest.fixture
def export(tmp_path):
    folder = aero.export_weights(trained("SM+ScFuFFN"), tmp_path / "export")
    words = ["to be or not to be"] * 4
    save_tokenizer(train_tokenizer(words, 257), folder, context_length=32)
    return folder


def run(*arguments):
    return CliRunner().invoke(app, ["private", "run", *map(str, arguments)])


def piece(index, name, client_bytes=1000, server_bytes=3000):
    traffic = {"client_bytes": client_bytes, "server_bytes": server_bytes}
    call = {"name": name, "seconds": 0.5, "cpu_seconds": 0.25, "traffic": traffic}
    return {"event": "piece", "index": index, "call": call}


def passed(index, logits, token):
    encoded = base64.b64encode(logits.astype("<f4").tobytes()).decode()
    return {
        "event": "pass", "index": index, "token": token,
        "shape": list(logits.shape), "logits": encoded,
    }  # fmt: skip


PIECES = ["embedding", "layer 0", "layer 1", "head", "argmax"]


def whole_run(network, prompt, off=0.0, wrong=False):
    """The events of two tokens, with logits that are off by a number."""
    events = [piece(0, "set-up"), piece(0, "weights", 0, 10)]
    read = list(prompt)
    for index in range(2):
        logits = forward(network, [read])[0]
        token = int(logits[-1].argmin() if wrong else logits[-1].argmax())
        events += [piece(index, name) for name in PIECES]
        events.append(passed(index, logits + off, token))
        read.append(token)
    return [*events, {"event": "done"}], read[len(prompt) :]


def test_tokens_logits_and_bytes_stand_beside_the_plaintext_and_the_prediction(export, pretender):
    network = read_network(export)
    events, expected = whole_run(network, [5, 6, 7], off=0.25)
    pretender.script(*events)
    result = run(export, "--prompt-tokens", "5,6,7", "--tokens", 2, "--json", "--set", "threads=3")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["tokens"] == found["plaintext_tokens"] == expected
    assert found["same_tokens"] is True
    assert [each["length"] for each in found["passes"]] == [3, 4]
    for each in found["passes"]:
        assert each["largest_difference"] == pytest.approx(0.25, abs=1e-5)
        assert (each["client_bytes"], each["server_bytes"]) == (5000, 15000)
        assert each["seconds"] == 2.5
    # Every byte of the prediction stands at one piece.
    spec = aero.ArchitectureSpec.from_dict(network.description["spec"])
    whole = aero.mpc.simulate(
        spec,
        context_length=3,
        stack="spu-0.9.5",
        secret_temperature=True,
        threads=3,
        setup=False,
        client_one_hot=True,
        last_token_head=True,
        private_weights=True,
    )
    first = found["passes"][0]
    predicted = first["predicted_client_bytes"] + first["predicted_server_bytes"]
    assert predicted == whole.comm_bytes
    assert "token 2: layer 1 of 2: 0.00 MB" in result.stderr
    job = pretender.started["job"]
    assert job["tokens"] == [5, 6, 7]
    assert job["settings"]["threads"] == 3


def test_bytes_that_chance_explains_are_shown_as_chance(export, pretender):
    """One Ferret extension more than the average run makes is no error of the prediction."""
    network = read_network(export)
    settings = PrivateSettings(reveal="all", private_weights=True)
    costs = predicted_costs(network.description, 3, settings)
    extension = 266_259
    events = [piece(0, "set-up"), piece(0, "weights", 0, 10)]
    for name in PIECES:
        whole = costs[name].comm_bytes - extension * costs[name].ots / 10_017_120
        if costs[name].elementwise_ciphertexts % 1:
            whole -= 1_143_924 * (costs[name].elementwise_ciphertexts / 4 % 0.5)
        events.append(piece(0, name, 0, round(whole + (extension if name == "layer 0" else 0))))
    logits = forward(network, [[5, 6, 7]])[0]
    events += [passed(0, logits, int(logits[-1].argmax())), {"event": "done"}]
    pretender.script(*events)
    given = export, "--prompt-tokens", "5,6,7", "--set", "threads=1"
    found = json.loads(run(*given, "--json").stdout)["passes"][0]["pieces"][1]
    assert found["name"] == "layer 0"
    assert found["ratio"] > 1.015 and found["resolution"] > 0.005
    assert abs(found["remainder"]) < 1e-6  # but for whole bytes
    text = run(*given).stdout.splitlines()
    [row] = (line for line in text if line.startswith("layer 0"))
    shown = [f"{100 * found[name]:.2f}" for name in ("resolution", "remainder")]
    assert row.split()[-3:-1] == shown
    assert any("± %" in line and "left %" in line for line in text)


def test_prompts_side_by_side_have_one_price_and_each_its_answer(export, pretender):
    network = read_network(export)
    prompts = [[5, 6, 7], [9, 8, 1]]
    logits = forward(network, prompts)
    best = logits[:, -1].argmax(-1).tolist()
    events = [piece(0, "set-up"), piece(0, "weights", 0, 10)]
    events += [piece(0, name) for name in PIECES]
    events += [passed(0, logits, best), {"event": "done"}]
    pretender.script(*events)
    given = ("--prompt-tokens", "5,6,7", "--prompt-tokens", "9,8,1")
    result = run(export, *given, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["prompt"] == prompts
    assert found["tokens"] == found["plaintext_tokens"] == [[one] for one in best]
    [only] = found["passes"]
    assert only["token"] == best and only["largest_difference"] < 1e-5
    costs = predicted_costs(network.description, 3, private_settings(None), sequences=2)
    whole = sum(costs[name].comm_bytes for name in PIECES)
    assert only["predicted_client_bytes"] + only["predicted_server_bytes"] == pytest.approx(whole)
    # The price stands before the first piece.
    assert result.stderr.index("3 tokens with the first") < result.stderr.index("set-up:")
    # Each place has a token of each prompt.
    assert pretender.started["job"]["tokens"] == [[5, 9], [6, 8], [7, 1]]
    text = run(export, *given).stdout
    assert text.count("private: ") == text.count("plaintext: ") == 2


def test_another_continuation_is_shown_as_such(export, pretender):
    network = read_network(export)
    events, tokens = whole_run(network, [5, 6, 7], wrong=True)
    pretender.script(*events)
    result = run(export, "--prompt-tokens", "5,6,7", "--tokens", 2, "--json")
    found = json.loads(result.stdout)
    assert found["tokens"] == tokens and found["same_tokens"] is False
    own = []
    for _ in range(2):  # the plaintext network reads its own tokens
        own.append(int(forward(network, [[5, 6, 7, *own]])[0, -1].argmax()))
    assert found["plaintext_tokens"] == own
    assert "(differs)" in run(export, "--prompt-tokens", "5,6,7", "--tokens", 2).stdout


def test_a_run_is_exported_and_its_prompt_is_text(tmp_path, pretender):
    model = trained("SM+ScFuFFN", dtype=torch.float32)
    model.save_pretrained(tmp_path / "run" / "model")
    tokenizer = train_tokenizer(["to be or not to be"] * 4, 257)
    save_tokenizer(tokenizer, tmp_path / "run" / "model", context_length=32)
    network = read_network(aero.export_weights(model, tmp_path / "export"))
    prompt = tokenizer.encode("to bé").ids
    events, _ = whole_run(network, prompt)
    pretender.script(*events)
    result = run(tmp_path / "run", "--prompt", "to bé", "--tokens", 2)
    assert result.exit_code == 0, result.stderr
    assert pretender.started["job"]["tokens"] == prompt
    assert "largest difference of the logits" in result.stdout


def test_the_prompt_is_never_on_a_command_line(export, pretender):
    events, _ = whole_run(read_network(export), [201, 202])
    pretender.script(*events)
    assert run(export, "--prompt-tokens", "201,202", "--tokens", 2).exit_code == 0
    assert "201" not in " ".join(pretender.started["arguments"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "exactly one of --prompt, --prompt-file and --prompt-tokens"),
        (["--prompt", "to", "--prompt-tokens", "1"], "exactly one of --prompt, --prompt-file and"),
        (["--prompt-file", "nowhere"], "nowhere: cannot be read: No such file"),
        (["--prompt-tokens", "1,x"], "--prompt-tokens must be integers with commas, got '1,x'"),
        (["--prompt-tokens", "1,256"], "tokens must be from 0 to 255, got 256"),
        (["--prompt", ""], "at least one token"),
        (["--prompt", "to", "--prompt", "to be"], "must have equally many tokens, got 2 and 5"),
        (["--prompt-tokens", "1", "--set", "reveal=token"], "must be all or last-logits, got tok"),
        (["--prompt-tokens", ",".join(["1"] * 33)], "must fit in the network's context of 32"),
        (["--prompt-tokens", "1,2", "--tokens", "32"], "31 before the last new one"),
        (["--prompt-tokens", "1", "--set", "exp_squarings=18"], "from 1 to 17, got 18"),
        (["--prompt-tokens", "1", "--set", "sharing=true"], "unknown field 'sharing'"),
        (["--prompt", "to", "--tokenizer", "nowhere"], "--tokenizer must be a folder with"),
    ],
)
def test_what_cannot_run_is_one_line_before_anything_starts(arguments, expected, export, pretender):
    result = run(export, *arguments)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert pretender.started is None


def test_the_context_can_be_filled_to_the_last_token(export, pretender):
    pretender.script({"event": "failed", "reason": "reached"})
    result = run(export, "--prompt-tokens", "1,2", "--tokens", 31)
    assert "reached" in result.stderr


def test_characters_that_the_tokenizer_does_not_know_are_named(export, pretender):
    words = Tokenizer(models.BPE(vocab={"t": 0, "o": 1}, merges=[]))
    words.save(str(export / "tokenizer.json"))
    result = run(export, "--prompt", "toé")
    assert result.exit_code == 2
    assert "does not know 'é', character 3 of the prompt" in result.stderr
    assert pretender.started is None


def test_a_prompt_without_a_tokenizer_is_refused(export, pretender):
    (export / "tokenizer.json").unlink()
    result = run(export, "--prompt", "to")
    assert result.exit_code == 2 and "give --tokenizer FOLDER or --prompt-tokens" in result.stderr


def test_weights_of_another_export_are_refused(export, pretender, tmp_path):
    other = aero.export_weights(trained("SM+G"), tmp_path / "other")
    (export / "weights.safetensors").write_bytes((other / "weights.safetensors").read_bytes())
    result = run(export, "--prompt-tokens", "1")
    assert result.exit_code == 2 and "is not the file that network.json describes" in result.stderr
    assert pretender.started is None


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("braid", "op: expected one of embed"),
        ("pool", "private: the network must continue a text, token by token, got pool"),
    ],
)
def test_a_network_with_an_unknown_operation_is_refused(op, message, export, pretender):
    described = json.loads((export / "network.json").read_text())
    one = {"op": op, "inputs": ["x"], "output": "x", "kind": "last"}
    described["operations"].insert(-1, one)
    (export / "network.json").write_text(json.dumps(described))
    result = run(export, "--prompt-tokens", "1")
    assert result.exit_code == 2
    assert message in result.stderr
    assert pretender.started is None


def test_a_folder_without_a_network_is_refused(tmp_path, pretender):
    result = run(tmp_path, "--prompt-tokens", "1")
    assert result.exit_code == 2 and "holds no network" in result.stderr


def test_a_missing_environment_says_how_to_make_one(export, tmp_path, monkeypatch):
    monkeypatch.delenv(environment.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "_PACKAGE", tmp_path / "python" / "aero")
    result = run(export, "--prompt-tokens", "1")
    assert result.exit_code == 2
    assert "make private" in result.stderr and "pip install spu==0.9.5" in result.stderr
    monkeypatch.setenv(environment.VARIABLE, str(tmp_path / "python3"))
    result = run(export, "--prompt-tokens", "1")
    assert result.exit_code == 2 and f"{environment.VARIABLE} must be a Python" in result.stderr


def test_the_environment_of_a_checkout_is_found(tmp_path, monkeypatch):
    monkeypatch.delenv(environment.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "_PACKAGE", tmp_path / "checkout" / "python" / "aero")
    python = tmp_path / "checkout" / ".venv-private" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert environment.find_private_python() == python


def test_the_versions_of_the_message_are_those_of_the_project():
    project = (Path(environment.__file__).parents[3] / "pyproject.toml").read_text()
    assert '"spu==0.9.5"' in project and '"jax[cpu]==0.4.34"' in project


def test_a_worker_that_fails_or_dies_ends_the_command_with_its_reason(export, pretender):
    pretender.script({"event": "failed", "reason": "RuntimeError: no memory"})
    result = run(export, "--prompt-tokens", "1")
    assert result.exit_code == 2 and "private: RuntimeError: no memory" in result.stderr
    pretender.script(piece(0, "set-up"), "die")
    result = run(export, "--prompt-tokens", "1")
    assert result.exit_code == 2
    assert "ended with exit code 3: what the library said last" in result.stderr


def test_a_program_starts_with_this_package_whatever_the_folder_holds(tmp_path, monkeypatch):
    (tmp_path / "aero.py").write_text("raise SystemExit('another aero')")
    program = tmp_path / "program.py"
    program.write_text("import sys, aero.private; print(aero.__file__, sys.argv[1:])")
    monkeypatch.chdir(tmp_path)
    command = environment.private_command(str(program), Path(sys.executable))
    done = subprocess.run([*command, "given"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{aero.__file__} ['given']"


def test_the_difference_is_the_largest_over_all_rows(export, pretender):
    network = read_network(export)
    events, _ = whole_run(network, [5, 6, 7])
    logits = forward(network, [[5, 6, 7]])[0].astype(np.float32)
    logits[0, 11] += 3.0
    place = next(i for i, event in enumerate(events) if event["event"] == "pass")
    events[place] = passed(0, logits, events[place]["token"])
    pretender.script(*events)
    found = json.loads(run(export, "--prompt-tokens", "5,6,7", "--tokens", 2, "--json").stdout)
    assert found["passes"][0]["largest_difference"] == pytest.approx(3.0, abs=1e-5)
