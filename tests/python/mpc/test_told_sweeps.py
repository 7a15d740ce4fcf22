"""All that sweeps and generations say of themselves, field by field."""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.python.refusals import assert_refused
from tests.python.run_records import run_info
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.cli import app
from aero.internals.records import as_dict
from aero.mpc.cost import Cost
from aero.mpc.network_sweep import SweepResult, SweepRow
from aero.mpc.simulation import described_spec
from aero.report import to_csv, to_text
from aero.tables import in_units

from .given_configurations import LLAMA
from .test_told_costs import TINY, json_of

# --- sweeps ---------------------------------------------------------------------------------------


def test_a_row_of_a_sweep_is_one_flat_mapping() -> None:
    cost = Cost(client_bytes=1e9, server_bytes=5e8, rounds=7)
    row = SweepRow("A", {"stack": "s"}, cost, {"lan": 2.0})
    plain = {"label": "A", "stack": "s", "comm_gb": 1.5, "rounds": 7, "seconds lan": 2.0}
    assert row.to_dict() == plain
    run = SweepRow("A", {"stack": "s"}, cost, {"lan": 2.0}, None, "r")
    assert run.to_dict() == {**plain, "perplexity": None, "run": "r"}
    names = ("comm_gb", "rounds", "perplexity", "lan")
    assert [run.objective(name) for name in names] == [1.5, 7, None, 2.0]
    found = SweepResult((row,), (({"label": "B", "num_heads": 5}, "why"),))
    assert found.to_dict() == {
        "rows": [plain],
        "skipped": [{"values": {"label": "B", "num_heads": 5}, "reason": "why"}],
        "notes": [],
        "unchecked": [],
        "trust": "",
        "lowerings": {},
    }
    assert repr(found) == "<SweepResult of 1 combinations>" and len(found) == 1
    assert found.pareto("rounds").skipped == found.skipped
    known = r"\['comm_gb', 'rounds', 'perplexity', 'lan'\]"
    with pytest.raises(
        ValueError, match=rf"^pareto: objectives must be among {known}, got \['x'\]$"
    ):
        found.pareto("x")
    nothing = SweepResult(())
    assert nothing.pareto("comm_gb") == nothing


def test_what_a_dealer_sends_is_a_column_where_one_sends_it() -> None:
    stacks = ["spu-semi2k", "spu-2024"]
    found = mpc.sweep("SM", model="tiny", stacks=stacks, context_length=[8, 16])
    own = [
        mpc.simulate("SM", model="tiny", stack=row.values["stack"],
                     context_length=row.values["context_length"]).total.dealer_bytes / 1e9
        for row in found.rows
    ]  # fmt: skip
    assert [value > 0 for value in own] == [True, False] * 2
    lines = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert [float(line["dealer_gb"]) for line in lines] == own
    assert [row["dealer_gb"] for row in found.to_dict()["rows"]] == own
    assert list(found.to_dataframe()["dealer_gb"]) == own
    assert "dealer_gb" in to_text(found).splitlines()[0]
    alone = mpc.sweep("SM", model="tiny", stacks=["spu-semi2k"])
    assert "trust: two parties and a dealer" in to_text(alone)
    assert "; the dealer sends dealer_gb beforehand" in alone.trust
    without = mpc.sweep("SM", model="tiny")
    assert "dealer" not in to_csv(without) and "dealer_gb" not in to_text(without)


def test_networks_without_a_label_are_rows_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()  # a folder of a preset's name that is none of a network
    assert mpc.sweep("gpt2").rows[0].cost == mpc.simulate("SM+LN+G").total
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps(LLAMA))
    axes: dict[str, Any] = {"context_length": [16, 32], "exp_squarings": [5, 8]}
    stacks = ["spu-2024", "sigma"]
    found = mpc.sweep(["gpt2", "SM", LLAMA], stacks=stacks, networks=["lan-1gbps"], **axes)
    rows = iter(found.rows)
    for given, name in (("gpt2", "gpt2"), ("SM", "SM"), (LLAMA, "llama")):
        for length, stack, squarings in itertools.product([16, 32], stacks, [5, 8]):
            row = next(rows)
            report = mpc.simulate(given, context_length=length, stack=stack,
                                  exp_squarings=squarings)  # fmt: skip
            assert (row.label, row.cost) == (name, report.total)
            assert row.values["context_length"] == length and row.values["stack"] == stack
            seconds = report.latency("lan-1gbps").seconds
            assert row.seconds["lan-1gbps"] == pytest.approx(seconds, rel=1e-12)
            assert {*report.notes} <= {*found.notes}
    assert next(rows, None) is None
    assert "act, spu-2024" in found.lowerings and "different trust" in to_text(found)
    command = ["cost", "sweep", "--label", "gpt2", "--set", "context_length=16,32", "--csv"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0 and len(done.stdout.splitlines()) == 3


def test_one_network_of_any_kind_is_one_row() -> None:
    config = LlamaConfig(**{name: size for name, size in LLAMA.items() if name != "model_type"})
    description = described_spec(ArchitectureSpec.from_label("SM", model="tiny")) | {"label": "own"}
    for given in (config, LLAMA, LlamaForCausalLM(config), description):
        (row,) = mpc.sweep(given, context_length=8).rows
        assert row.cost == mpc.simulate(given, context_length=8).total


def test_what_a_network_without_a_label_has_not_is_named() -> None:
    assert_refused(lambda: mpc.sweep(LLAMA, num_heads=[2, 4]), "num_heads", "labels", "got dict")
    assert_refused(lambda: mpc.sweep([5]), "label", "got int")
    assert_refused(lambda: mpc.sweep("SL"), "label", "SM", "SL")
    assert_refused(lambda: mpc.sweep("meta-llama/Llama-3-8B"), "label", "Llama-3-8B", "config.json")
    assert_refused(lambda: mpc.sweep(LLAMA, context_length=[8, 0]), "first {'label'", "got 0")
    assert len(mpc.sweep(LLAMA, context_length=[8, 0], skip=True).skipped) == 1


def test_a_sweep_takes_specs_labels_single_values_and_the_machines_it_is_given() -> None:
    spec = ArchitectureSpec.from_label("SM+R", model="tiny", context_length=16)
    found = mpc.sweep(
        [spec, "SM"], model="tiny", networks=["lan-1gbps"], compute="none", exp_squarings=5
    )
    for row, one in zip(found.rows, (spec, "SM"), strict=True):
        options = {} if one is spec else {"model": "tiny"}
        report = mpc.simulate(one, exp_squarings=5, **options)
        assert (row.label, row.cost) == (report.spec.label, report.total)
        assert row.values == {"stack": "spu-2024", "exp_squarings": 5}
        seconds = report.latency("lan-1gbps", "none").seconds
        assert row.seconds == {"lan-1gbps": pytest.approx(seconds, rel=1e-12)}
        assert (row.perplexity, row.run) == (None, None)
    assert [row.label for row in mpc.sweep("SM", model="tiny").rows] == ["SM"]


def test_a_combination_that_does_not_exist_is_named_with_all_its_values() -> None:
    asked: dict[str, Any] = {"model": "tiny", "num_heads": [3, 2, 5], "exp_squarings": [5]}
    found = mpc.sweep("SM", skip=True, **asked)
    places = [
        {"label": "SM", "num_heads": n, "stack": "spu-2024", "exp_squarings": 5} for n in (3, 5)
    ]
    assert [values for values, _ in found.skipped] == places
    reason = found.skipped[0][1]
    with pytest.raises(ValueError) as error:
        mpc.sweep("SM", **asked)
    assert str(error.value) == f"sweep: 2 combinations do not exist, first {places[0]}: {reason}"


def test_runs_are_told_by_what_is_wrong_with_them(tmp_path: Path) -> None:
    whole = as_dict(run_info())
    for name, run, evaluation in (
        ("no_spec", {"format": 1}, {"perplexity": 3}),
        ("no_field", {**whole, "spec": {**whole["spec"], "num_layers": "x"}}, {"perplexity": 3}),
        ("no_perplexity", whole, {}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps(run))
        (folder / "evaluation.json").write_text(json.dumps(evaluation))
        with pytest.raises(ValueError, match=rf"^sweep: \S+{name} is no run folder: .+"):
            mpc.sweep(runs=[str(folder)])
    (tmp_path / "no_perplexity" / "evaluation.json").write_text('{"perplexity": 3.5}')
    (row,) = mpc.sweep(runs=[tmp_path / "no_perplexity"]).rows
    assert (row.perplexity, row.run, row.label) == (3.5, "no_perplexity", "SM")
    with pytest.raises(ValueError, match=r"^sweep: model is for labels; .*, got mini$"):
        mpc.sweep(runs=[tmp_path / "no_perplexity"], model="mini")


# --- generation -----------------------------------------------------------------------------------


def test_a_generation_is_told_in_full() -> None:
    stack = "aero-optimized-generation"
    report = mpc.simulate_generation(
        "SM+R", new_tokens=3, batch=2, stack=stack, exp_squarings=6, **TINY
    )
    assert report.stack == stack and report.sampling == "argmax"
    assert len(report) == 3
    assert json_of(report.to_dict()) == json_of(
        {
            "label": "SM+R",
            "spec": report.spec.to_dict(),
            "sizes": report.token_report(0).to_dict()["sizes"],
            "stack": stack,
            "stack_fields": {**mpc.stack_fields(stack), "exp_squarings": 6},
            "batch": 2,
            "new_tokens": 3,
            "sampling": "argmax",
            **report.total.to_dict(),
            "by_kind": {kind: cost.to_dict() for kind, cost in report.by_kind.items()},
            "per_token": [cost.to_dict() for cost in report.per_token],
            "unchecked": list(report.token_report(0).unchecked),
            "notes": list(report.notes),
            "trust": report.token_report(0).trust,
            "lowerings": {
                part: list(lines) for part, lines in report.token_report(0).lowerings.items()
            },
        }
    )
    gigabytes = in_units(report.comm_bytes)
    assert repr(report) == (
        f"<GenerationReport SM+R on aero-optimized-generation: 3 tokens, {gigabytes} GB>"
    )
    assert report.seconds_per_token() == tuple(
        report.token_report(token).latency("paper-testbed", "paper-testbed").seconds
        for token in range(3)
    )
    free = report.seconds_per_token("lan-1gbps", "none")
    assert free[1] == report.token_report(1).latency("lan-1gbps", "none").seconds
    for token in (-1, 3):
        message = f"^token_report: token must be from 0 to 2, got {token}$"
        with pytest.raises(ValueError, match=message):
            report.token_report(token)


def test_a_token_is_priced_with_the_fields_that_were_changed() -> None:
    asked = {"exp_squarings": 6, "stack": "spu-2024", "sampling": "client", "batch": 2}
    report = mpc.simulate_generation("SM", new_tokens=2, **TINY, **asked)
    for token, cost in enumerate(report.per_token):
        one = report.token_report(token)
        assert one.changed_fields() == {"exp_squarings": 6}
        assert one.total == cost and "reveal" in one.by_kind
