"""What the last lines of `aero cost advise` promise is what their commands make."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.python.mpc.cost_command import LINK, TINY, run
from tests.python.mpc.given_configurations import (
    BERT,
    GEMMA,
    GPT2,
    LLAMA,
    MIXTRAL,
    OPT,
    PYTHIA,
    T5,
    VIT,
)

import aero
from aero import mpc
from aero.mpc.advice import advise
from aero.train.recipes.recipe_files import load_recipe
from aero.train.runs.planning import spec_for


def trained_by(command: str, sizes: dict[str, int]) -> Any:
    """The network that a command of `aero train` trains, with a vocabulary."""
    words = shlex.split(command)
    assert words[:3] == ["aero", "train", "--label"]
    settings = [word for option, word in itertools.pairwise(words) if option == "--set"]
    recipe = load_recipe("demo", settings=settings)
    return spec_for(recipe, words[3]).replace(vocab_size=sizes["vocab_size"])


PYTHIA_FIELDS = aero.ArchitectureSpec.from_label(
    "SM+LN+G", model="pythia-70m", num_layers=2, num_heads=2, width=32, vocab_size=320,
    context_length=64, hidden_width=48,
).to_dict()  # fmt: skip
OURS: dict[str, Any] = {
    "model_type": "aero", "attention_temperature": PYTHIA_FIELDS["temperature"], **PYTHIA_FIELDS,
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "label"),
    [
        ("SM+LN+G", "SM+ScFuFFN"),
        ("EReg(SM(t)+LN+G)", "EReg(SM(t)+ScFuFFN)"),
        (OURS, "SM+ScFuFFN"),
        (GPT2, "SM+ScFuFFN"),
        (GPT2 | {"n_inner": 80, "activation_function": "relu"}, "SM+ScFuFFN"),
        (PYTHIA, "SM+ScFuFFN"),
        (OPT, "SM+ScFuFFN"),
        (LLAMA, "SM+FN+R"),
        (GEMMA, "SM+FN+R"),
    ],
)
def test_the_last_lines_are_a_network_that_a_command_takes(given: Any, label: str) -> None:
    sizes: dict[str, Any] = TINY if isinstance(given, str) else {"context_length": 16}
    found = advise(given, LINK, **sizes)
    assert found.trained is not None and found.trained.change.label == label
    for one in found.networks:
        chosen = dataclasses.replace(found, networks=(one,))
        source, model = (given, "tiny") if isinstance(given, str) else ("./folder", "gpt2")
        lines = chosen.commands(source, model)
        command, *rest = (line for line in lines if "EXPORT" not in line)
        if found.exact_gelu and "+G" in one.change.label:
            # Random weights start with the tanh form of GELU; a conversion keeps the exact one.
            assert command.startswith("aero convert")
            continue
        made = trained_by(command, found.report.sizes)
        fields = one.change.fields
        assert made.label == one.change.label
        trained = mpc.simulate(made, stack="spu-0.9.5", **fields)
        assert trained.total == one.report.total, command
        assert trained.latency(LINK, "spu-epyc").seconds == one.seconds
        assert any("aero convert" in line for line in rest) == (given not in (OPT, LLAMA, GEMMA))


@pytest.mark.parametrize(
    ("given", "converted"),
    [
        (GPT2, 4),
        (PYTHIA, 4),
        ("SM+FN+R", 1),
        ("EReg(SM(t)+LN+G)", 4),
        ("SM+LN+R_i1", 2),
        ("SM+DyT+G", 1),  # to ReLU; its norms stay
        ("SM+LN+G+S4", 1),
        ("SM+FN+R+S4", 1),
        ("SOTA:SM+LN+G", 1),
    ],
)
def test_what_a_command_converts_has_the_price_that_is_printed(given: Any, converted: int) -> None:
    sizes: dict[str, Any] = {"context_length": 16}
    if isinstance(given, str):
        sizes["model"] = "tiny"
        model: Any = aero.AeroForCausalLM(aero.AeroConfig.from_label(given, **sizes))
    else:
        kind = transformers.AutoConfig.for_model(**given)
        model = transformers.AutoModelForCausalLM.from_config(kind).eval()
    found = advise(given, LINK, **sizes)
    assert len({one.change.label for one in found.networks}) == len(found.networks)
    made = 0
    for one in found.networks:
        lines = found.commands_of(one.change.network)
        if any(line.startswith("aero convert FOLDER --label") for line in lines):
            again = mpc.simulate(
                aero.convert(model, one.change.label), stack="spu-0.9.5", context_length=16,
                **one.change.fields,
            )  # fmt: skip
            assert again.total == one.report.total, one.change.label
            made += 1
    assert made == converted


@pytest.mark.parametrize(
    "config", [BERT, VIT, T5, MIXTRAL, GPT2 | {"architectures": ["GPT2ForSequenceClassification"]}]
)
def test_a_family_that_no_command_trains_ends_in_commands_that_price_it_again(
    config: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    for stack in ("spu-0.9.5", "openbumblebee"):
        found = advise(str(tmp_path), LINK, stack=stack)
        assert found.networks == ()
        text = run("advise", str(tmp_path), "--stack", stack, "--rtt-ms", "20", "--mbps", "200")
        commands = [line for line in text.splitlines() if line.startswith("aero ")]
        assert commands == found.commands(str(tmp_path))
        chosen = [one for one in (found.as_it_is, found.approximate) if one is not None]
        for command, one in zip(commands, chosen, strict=True):
            words = shlex.split(command)
            assert words[:3] == ["aero", "cost", "show"]
            again = json.loads(run(*words[2:], "--json"))
            assert again["comm_bytes"] == one.report.comm_bytes
            assert again["latency"]["seconds"] == one.seconds
        # Its own changes are in the table all the same.
        assert any(one.change.effect == "needs training" for one in found.rows)


def test_a_decoder_of_others_is_replaced_by_one_that_is_called_ours(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    lines = run("advise", str(tmp_path), "--context-length", "16").splitlines()
    (own,) = (line for line in lines if "training (our decoder" in line)
    export, run_it, _, train, _ = (line for line in lines if line.startswith("aero "))
    assert export == f"aero export {tmp_path} --output EXPORT"
    assert run_it.startswith("aero private run EXPORT --set")
    made = trained_by(train, {"context_length": 16, "vocab_size": LLAMA["vocab_size"]})
    (fields,) = json.loads(run("advise", str(tmp_path), "--context-length", "16", "--json"))[
        "networks"
    ]
    again = mpc.simulate(made, stack="spu-0.9.5", **fields["fields"])
    assert again.comm_bytes == fields["comm_bytes"]
    assert f": {again.comm_bytes / 1e9:.3f} GB and " in own
    assert any("no command here trains or converts llama" in line for line in lines)
    assert "with more memory" not in " ".join(lines)
    little = run("advise", str(tmp_path), "--context-length", "16", "--memory", "0.1")
    assert "aero export " not in little
    assert "note: with more memory `aero private run` runs it after `aero export`" in little
    # Positions that are scaled have no export.
    scaled = LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
    (tmp_path / "config.json").write_text(json.dumps(scaled))
    text = run("advise", str(tmp_path), "--context-length", "16")
    assert "aero export" not in text and "\naero cost show " in text


def test_an_exported_network_is_run_and_not_trained(tmp_path: Path) -> None:
    model = aero.AeroForCausalLM(aero.AeroConfig.from_label("SM+FN+R", model="tiny"))
    aero.export_weights(model, tmp_path)
    lines = run("advise", str(tmp_path), "--context-length", "16").splitlines()
    commands = [line for line in lines if line.startswith("aero ")]
    assert len(commands) == 2
    assert all(one.startswith("aero private run RUN --set") for one in commands)
    assert any("no command here trains or converts SM+FN+R" in line for line in lines)
