"""The small parts of a training: signals, samples, records."""

import os
import pty
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from aero.internals.errors import TrainingError
from aero.internals.records import as_dict
from aero.internals.run_files import TrainLine
from aero.models import AeroConfig, AeroForCausalLM, entropies
from aero.train import progress
from aero.train.progress import StopRequest
from aero.train.runs import samples
from aero.train.runs.run_folder import RunFolder

from .conftest import begun

# --- signals ----------------------------------------------------------------------------------


def test_a_second_ctrl_c_stops_at_once_and_handlers_come_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopRequest() as stop:
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    with StopRequest() as stop:
        assert stop.requested is False
        signal.raise_signal(signal.SIGINT)
        assert stop.requested is True


def test_a_hangup_stops_as_a_termination_does_unless_it_is_ignored():
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.requested
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.requested
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# Writes to the terminal that is gone before it says that it was asked to stop.
HUNG_UP = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` hands on that it is ignored
sys.path.insert(0, {path!r})
from aero.train.progress import StopRequest
with StopRequest() as stop:
    print("ready", flush=True)
    while not stop.requested:
        time.sleep(0.01)
    print("step", file=sys.stderr, flush=True)
open({file!r}, "w").write("checkpoint")
"""


def test_a_terminal_that_is_gone_does_not_end_what_is_left_of_a_step(tmp_path):
    file = tmp_path / "written"
    process, terminal = pty.fork()
    if process == 0:
        path = str(Path(progress.__file__).parents[2])
        program = HUNG_UP.format(path=path, file=str(file))
        os.execv(sys.executable, [sys.executable, "-c", program])
    assert b"ready" in os.read(terminal, 100)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert file.read_text() == "checkpoint"


def test_a_bar_is_told_all_it_needs(monkeypatch):
    asked = []
    monkeypatch.setattr(progress, "tqdm", lambda **given: asked.append(given))
    monkeypatch.setattr(
        progress.shutil, "get_terminal_size", lambda **_: os.terminal_size((70, 20))
    )
    for terminal, unit, rank in ((True, "B", "0"), (False, "step", "3")):
        monkeypatch.setattr(progress.sys.stderr, "isatty", lambda n=terminal: n, raising=False)
        monkeypatch.setenv("RANK", rank)
        progress.progress_bar("a\nb", 9, unit, initial=2)
        assert asked.pop() == {
            "desc": "a\\nb", "total": 9, "initial": 2, "unit": unit, "unit_scale": terminal,
            "delay": 2.0, "mininterval": 0.2 if terminal else 10.0, "ncols": 70, "nrows": 20,
            "disable": not terminal,
        }  # fmt: skip


# --- samples ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "too short\n  next one two three four five six \nlast",
            "next one two three four five six",
        ),
        ("a bb ccc dddd eeeeeeeeeeeeeeee\nz", "a bb ccc dddd eeeeeeeeeeeeeeee"),  # 30
        ("a bb ccc dddd eeeeeeeeeeeeeee\nz", None),  # 29
        ("a bb ccc dddd " + "e" * 46, "a bb ccc dddd " + "e" * 46),  # 60
        ("a bb ccc dddd " + "e" * 47, "a bb ccc dddd " + "e" * 46),  # 61: its beginning
        ("a bb ccc dddd 5 6 7 8 9 10 11 12 13", None),  # four words
        ("a bb ccc dddd e 6 7 8 9 10 11 12 13", "a bb ccc dddd e 6 7 8 9 10 11 12 13"),
        (
            "print(1234567890, 1234567890, 12345)\n    # the quick brown fox jumps over the dog\n",
            "# the quick brown fox jumps over the dog",
        ),
        # A line that a person would write comes before code and headers.
        (
            "# Copyright 2001 by someone, all rights kept here\n"
            "for line in file if line is not None\n"
            "    # Wait until the child is gone, then go on.\n"
            "    return the first of all the lines here\n",
            "Wait until the child is gone, then go on.",
        ),
    ],
)
def test_a_sentence_is_a_line_of_five_words_in_30_to_60_characters(text, sentence):
    if sentence is None:  # its beginning
        sentence = " ".join(text.split())[:60]
    assert samples.sentence_of(text) == sentence


class Characters:
    """A tokenizer of one token per character, below 256."""

    eos_token_id = 0

    def __call__(self, text, add_special_tokens):
        assert add_special_tokens is False
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, ids, skip_special_tokens=False):
        return "".join(chr(number) for number in ids if number or not skip_special_tokens)


@pytest.mark.parametrize("context", [96, 40, 34, 16])
def test_a_sample_is_a_line_its_attention_and_what_the_network_writes(context):
    torch.manual_seed(5)
    model = AeroForCausalLM(AeroConfig.from_label("SM", model="tiny", context_length=context))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.eval()
    line = "the quick brown fox sees one dog !"  # of 34 tokens
    ids = np.array([ord(letter) for letter in f"x\n{line}\nand so on"], dtype=np.uint16)
    state = torch.get_rng_state()
    sample = samples.sample_of(model, Characters(), ids)
    assert torch.equal(torch.get_rng_state(), state)
    shown = min(24, context)
    prompt = torch.tensor([[ord(letter) for letter in line]])
    expected = ""
    if context > len(line):
        torch.manual_seed(0)
        made = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=True, temperature=0.8,
            top_k=20, pad_token_id=0, max_new_tokens=min(48, context - len(line)),
        )  # fmt: skip
        expected = Characters().decode(made[0, len(line) :], skip_special_tokens=True)
        assert len(made[0]) == min(82, context)
    found = entropies(model, prompt[:, :shown], attention_maps=True)
    maps = [layer[0].double().tolist() for layer in found.attention_maps]
    assert as_dict(sample) == {
        "format": 1,
        "text": line,
        "tokens": list(line[:shown]),
        "attention": [
            [[[round(w, 4) for w in row[: i + 1]] for i, row in enumerate(head)] for head in layer]
            for layer in maps
        ],
        "continuation": expected,
    }
    with pytest.raises(TrainingError) as error:
        samples.look_at(model, Characters(), "", most_tokens=5)
    assert str(error.value) == "the text must have at least one token, got ''"


# --- records ----------------------------------------------------------------------------------


def test_the_records_of_a_folder_are_read_as_far_as_they_are_whole(tmp_path):
    folder = RunFolder(str(tmp_path))
    assert folder.metrics().lines == [] and folder.metrics_head() == b"" and not folder.exists()
    lines = [folder.append_metrics(TrainLine(step=step)) for step in (1, 2)]
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "tra')
    assert [line.step for line in folder.metrics().train] == [1, 2]
    assert folder.metrics_head(5) == lines[0][:5]
    assert folder.metrics_head() == folder.metrics_head(-1) == b"".join(lines) + b'{"kind": "tra'
    begun(folder).update(steps_done=3)
    info = folder.info()
    assert (info.format, info.status, info.label, info.steps_done) == (1, "running", "SM", 3)
