"""Published names, such as gpt2-medium, priced as the networks that have them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.python.refusals import assert_refused
from transformers import GPT2Config, GPTNeoXConfig
from typer.testing import CliRunner

from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.cli import app
from aero.mpc.advice import advise
from aero.mpc.profiles import link_profile
from aero.mpc.winners import passes

# Parameters of GPT-2's weights as published on the hub.
GPT2 = {
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
}  # fmt: skip
# Table 1 of Pythia (arXiv 2304.01373): without the embedding and the head.
PYTHIA = {
    "pythia-70m": 18_915_328, "pythia-160m": 85_056_000, "pythia-410m": 302_311_424,
    "pythia-1b": 805_736_448, "pythia-1.4b": 1_208_602_624, "pythia-2.8b": 2_517_652_480,
    "pythia-6.9b": 6_444_163_072, "pythia-12b": 11_327_027_200,
}  # fmt: skip


@pytest.mark.parametrize("name", GPT2)
def test_a_size_of_gpt2_has_as_many_parameters_as_published(name: str) -> None:
    spec = ArchitectureSpec.from_label("SM+LN+G", model=name, context_length=1024)
    assert spec.parameter_count() == GPT2[name]


@pytest.mark.parametrize("name", PYTHIA)
def test_a_size_of_pythia_has_as_many_parameters_as_published(name: str) -> None:
    spec = ArchitectureSpec.from_label("SM+LN+G", model=name)
    assert spec.parameter_count() - 2 * spec.vocab_size * spec.width == PYTHIA[name]


@pytest.mark.parametrize("stack", [*mpc.stack_names(), "sigma"])
def test_gpt2_is_its_label_at_its_size(stack: str) -> None:
    label = mpc.simulate("SM+LN+G", model="gpt2", stack=stack)
    for name in ("gpt2", "openai/GPT2", "openai-community/gpt2"):
        assert mpc.simulate(name, stack=stack) == label


def test_a_name_costs_what_its_configuration_costs() -> None:
    medium = GPT2Config(n_embd=1024, n_layer=24, n_head=16)
    assert mpc.simulate("gpt2-medium").total == mpc.simulate(medium).total
    pythia = GPTNeoXConfig(
        vocab_size=50304, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
        intermediate_size=3072,
    )  # fmt: skip
    for stack in ("spu-0.9.5", "openbumblebee", "spu-aby3"):
        expected = mpc.simulate(pythia, stack=stack)
        for name in ("pythia-160m", "EleutherAI/pythia-160m-deduped"):
            found = mpc.simulate(name, stack=stack)
            assert (found.total, found.stack_fields) == (expected.total, expected.stack_fields)
            assert found.notes == expected.notes


def test_sizes_and_fields_can_be_changed_and_long_contexts_are_said() -> None:
    found = mpc.simulate("gpt2", num_layers=6, exp_squarings=5)
    assert found == mpc.simulate("SM+LN+G", num_layers=6, exp_squarings=5)
    assert mpc.simulate("pythia-70m", stack="spu-0.9.5", gelu="tanh").total == (
        mpc.simulate("SM+LN+G", model="pythia-70m", stack="spu-0.9.5").total
    )
    for name, positions in (("gpt2-xl", "1,024"), ("pythia-1b", "2,048")):
        notes = mpc.simulate(name, context_length=4096, num_layers=1).notes
        assert any(f"{positions} positions" in note for note in notes)


def test_tokens_protocols_and_sweeps_take_names() -> None:
    names = {"gpt2": "gpt2", "pythia-70m": "pythia-70m"}
    for name, model in names.items():
        fields: dict[str, Any] = {"num_layers": 1, "stack": "spu-0.9.5"}
        exact = {"gelu": "erf"} if name == "pythia-70m" else {}
        made = mpc.simulate_generation(name, new_tokens=2, **fields)
        label = mpc.simulate_generation("SM+LN+G", model=model, new_tokens=2, **fields, **exact)
        assert made.total == label.total
        [first, *_] = passes(name, ["spu-aby3"], context_length=16)
        assert first.first.total == passes(
            "SM+LN+G", ["spu-aby3"], model=model, context_length=16, **exact
        )[0].first.total  # fmt: skip
    found = mpc.sweep(
        ["gpt2", "pythia-70m", "SM+FN+R"], context_length=[16, 4096], num_layers=1,
        stacks=["spu-0.9.5"],
    )  # fmt: skip
    assert [row.label for row in found.rows[::2]] == ["gpt2", "pythia-70m", "SM+FN+R"]
    for row in found.rows:
        priced = mpc.simulate(row.label, **row.values)
        assert row.cost.comm_bytes == pytest.approx(priced.comm_bytes, rel=1e-12)
    for positions in ("1,024 positions", "2,048 positions"):
        assert any(positions in note for note in found.notes)
    assert any("exact GELU" in note for note in found.notes)


def test_advice_on_pythia_keeps_its_exact_gelu() -> None:
    link = link_profile(20, 200)
    found = advise("pythia-70m", link, context_length=16)
    own = mpc.simulate("pythia-70m", stack="spu-0.9.5", context_length=16)
    assert found.report.total == own.total
    rows = {one.change.name: one for one in found.rows}
    tanh = mpc.simulate("SM+LN+G", model="pythia-70m", stack="spu-0.9.5", context_length=16)
    assert rows["GELU's tanh form"].report.total == tanh.total
    shared = advise("pythia-70m", link, stack="spu-aby3", context_length=16)
    expected = mpc.simulate("pythia-70m", stack="spu-aby3", context_length=16)
    assert shared.report.total == expected.total
    relu = mpc.simulate("SM+LN+R", model="pythia-70m", stack="spu-0.9.5", context_length=16)
    assert rows["ReLU instead of GELU"].report.total == relu.total
    assert found.commands("pythia-70m")[0].endswith(
        " --set model.preset=pythia-70m --set model.context_length=16"
    )


def test_commands_take_names() -> None:
    def text(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["cost", *arguments])
        assert done.exit_code == 0, done.output
        return done.output

    assert text("show", "gpt2") == text("show", "SM+LN+G", "--model", "gpt2")
    named = text("compare", "gpt2-medium", "SM+FN+R", "--model", "gpt2-medium")
    assert named == text("compare", "SM+LN+G", "SM+FN+R", "--model", "gpt2-medium")
    sizes = ("--context-length", "16")
    assert "model.preset=gpt2" in text("advise", "gpt2", *sizes)
    for command in ("where", "schedule", "generate"):
        arguments = (command, "pythia-70m", *sizes)
        if command == "generate":
            arguments += ("--new-tokens", "2")
        assert "T 16" in text(*arguments) or "16 tokens" in text(*arguments)
    assert text("optimizations", "gpt2", "--size", "16")
    assert "gpt2-xl" in text("sweep", "--label", "gpt2-xl", "--set", "num_layers=1")


def test_a_name_that_could_be_of_other_sizes_is_refused() -> None:
    for name in ("someone/gpt2", "someone/pythia-70m", "gpt2-huge", "pythia"):
        assert_refused(partial(mpc.simulate, name), "label", name, "config.json")
    assert_refused(
        partial(mpc.simulate, "gpt2-medium", model="pythia-70m"), "model", "gpt2-medium",
        "pythia-70m",
    )  # fmt: skip
