"""`sweep`: grids, Pareto fronts, and perplexities from run folders."""

from __future__ import annotations

import copy
import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.python.refusals import assert_refused
from tests.python.run_records import run_info

from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.internals.records import record_bytes
from aero.internals.run_files import CorpusRecord
from aero.mpc.network_sweep import SweepRow
from aero.mpc.sweep_axes import require_once
from aero.report import to_csv, to_text


def test_rows_are_reports_in_the_order_of_the_loops() -> None:
    found = mpc.sweep(
        ["SM+LN+G", "SM+ScFuFFN"],
        model="mini",
        stacks=["spu-2024", "blb"],
        networks=["lan-1gbps", "wan-100mbps"],
        context_length=[16, 100],
        exp_squarings=[5, 8],
    )
    rows = iter(found.rows)
    for label in ("SM+LN+G", "SM+ScFuFFN"):
        for length in (16, 100):
            for stack in ("spu-2024", "blb"):
                for squarings in (5, 8):
                    row = next(rows)
                    report = mpc.simulate(
                        label,
                        model="mini",
                        context_length=length,
                        stack=stack,
                        exp_squarings=squarings,
                    )
                    assert row.cost == report.total
                    assert row.values == {
                        "context_length": length,
                        "stack": stack,
                        "exp_squarings": squarings,
                    }
                    for network in ("lan-1gbps", "wan-100mbps"):
                        seconds = report.latency(network).seconds
                        assert row.seconds[network] == pytest.approx(seconds, rel=1e-12)
    assert next(rows, None) is None


def test_combinations_that_do_not_exist_are_skipped_or_errors() -> None:
    with pytest.raises(ValueError, match=r"sweep: 1 combinations do not exist.*num_heads.*5"):
        mpc.sweep("SM", num_heads=[4, 5])
    found = mpc.sweep("SM", num_heads=[4, 5, 2, 7], skip=True)
    assert [row.values["num_heads"] for row in found.rows] == [4, 2]
    assert [values["num_heads"] for values, _ in found.skipped] == [5, 7]
    for row in found.rows:
        assert row.cost == mpc.simulate("SM", num_heads=row.values["num_heads"]).total
    assert "2 combinations do not exist" in to_text(found)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from([16, 33, 64, 100, 128]), min_size=1, max_size=4, unique=True),
    st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3, unique=True),
    st.sets(st.sampled_from(["comm_gb", "rounds", "lan-1gbps"]), min_size=1),
)
def test_the_front_is_what_nothing_beats(
    lengths: list[int], heads: list[int], objectives: set[str]
) -> None:
    found = mpc.sweep(
        ["SM", "SM+R"],
        model="tiny",
        context_length=lengths,
        num_heads=heads,
        causal_skip=[False, True],
        networks=["lan-1gbps"],
    )
    front = found.pareto(*objectives).rows

    def scores(row: SweepRow) -> list[float]:
        values = [row.objective(name) for name in objectives]
        return [value for value in values if value is not None]

    def beats(a: SweepRow, b: SweepRow) -> bool:
        first, second = scores(a), scores(b)
        return first != second and all(x <= y for x, y in zip(first, second, strict=True))

    expected = [row for row in found.rows if not any(beats(other, row) for other in found.rows)]
    assert sorted(map(repr, front)) == sorted(map(repr, expected))


def write_run(
    folder: Path, label: str, perplexity: float | None, corpus: dict[str, Any] | None = None
) -> None:
    folder.mkdir(parents=True)
    spec = ArchitectureSpec.from_label(label, model="mini", context_length=32)
    text = None if corpus is None else CorpusRecord(**corpus)
    run = run_info(label=label, spec=spec.to_dict(), corpus=text)
    (folder / "run.json").write_bytes(record_bytes(run))
    if perplexity is not None:
        (folder / "evaluation.json").write_text(json.dumps({"perplexity": perplexity}))


def write_evaluation(folder: Path, tokens: int) -> None:
    evaluation = {"perplexity": 9.0, "tokens": tokens, "windows": "disjoint"}
    (folder / "evaluation.json").write_text(json.dumps(evaluation))


def test_runs_bring_their_sizes_and_perplexities(tmp_path: Path) -> None:
    write_run(tmp_path / "dear", "SM+LN+G", 9.0)
    write_run(tmp_path / "cheap", "SM+ScFuFFN", 12.0)
    write_run(tmp_path / "beaten", "SM+LN+R", 13.0)
    write_run(tmp_path / "unmeasured", "SM", None)
    found = mpc.sweep(runs=[tmp_path])
    assert {row.run for row in found.rows} == {"dear", "cheap", "beaten"}
    front = found.pareto("perplexity", "comm_gb")
    assert [row.run for row in front.rows] == ["dear", "cheap"]
    cheap = mpc.simulate("SM+ScFuFFN", model="mini", context_length=32)
    assert front.rows[1].comm_gb == cheap.comm_bytes / 1e9
    assert "perplexity" in to_text(found)
    mixed = mpc.sweep(["SM"], runs=[tmp_path]).pareto("perplexity", "comm_gb")
    assert [row.run for row in mixed.rows] == ["dear", "cheap"]


def test_runs_that_were_evaluated_on_unequal_tokens_are_refused(tmp_path: Path) -> None:
    for label, tokens in (("SM+LN+G", 3100), ("SM+R", 3100), ("SM", 124)):
        write_run(tmp_path / label, label, 9.0, {"sha256": "5e" * 32})
        write_evaluation(tmp_path / label, tokens)
    assert len(mpc.sweep(runs=[tmp_path / "SM+LN+G", tmp_path / "SM+R"]).rows) == 2
    with pytest.raises(ValueError, match=r"^sweep: .*unequal parts of one text"):
        mpc.sweep(runs=[tmp_path])


@pytest.mark.parametrize("corpus", [None, {"name": "a text of someone's"}])
def test_runs_that_do_not_say_their_text_are_not_of_one_text(
    corpus: dict[str, Any] | None, tmp_path: Path
) -> None:
    for label, tokens in (("SM+LN+G", 3100), ("SM+R", 124)):
        write_run(tmp_path / label, label, 9.0, corpus)
        write_evaluation(tmp_path / label, tokens)
    assert len(mpc.sweep(runs=[tmp_path]).rows) == 2


def test_many_values_are_looked_through_once() -> None:
    class Value(int):
        """Counts how often it is compared."""

        compared = 0
        __hash__ = int.__hash__

        def __eq__(self, other: object) -> bool:
            Value.compared += 1
            return int(self) == other

    require_once("context_length", map(Value, range(10_000)))
    assert Value.compared < 10_000
    with pytest.raises(ValueError, match="each once"):
        require_once("context_length", [*map(Value, range(10)), Value(7)])


@pytest.mark.parametrize("value", [3, {"name": "mine"}])
def test_whatever_is_given_twice_is_an_error(value: object) -> None:
    require_once("networks", [value, {"name": "other"}])
    with pytest.raises(ValueError, match="each once"):
        require_once("networks", [value, {"name": "other"}, copy.copy(value)])


def test_a_run_that_is_named_twice_is_one_row(tmp_path: Path) -> None:
    write_run(tmp_path / "all" / "run", "SM", 30.0)
    (tmp_path / "link").symlink_to(tmp_path / "all")
    names = [tmp_path / "all" / "run", tmp_path / "all", tmp_path / "all" / ".." / "link"]
    assert [row.run for row in mpc.sweep(runs=names).rows] == ["run"]


HUGE = {"num_layers": 90, "width": 8192, "num_heads": 64, "context_length": 131072}


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: mpc.sweep(["SM", "SM+R", "sm"]), ("labels", "each once")),
        (lambda: mpc.sweep("SM", stacks=["spu-2024", "spu-2024"]), ("stacks", "each once")),
        (lambda: mpc.sweep("SM", networks=["lan-1gbps", "lan-1gbps"]), ("networks", "each once")),
        (lambda: mpc.sweep("SM", context_length=[128, 256, 128]), ("context_length", "each once")),
        (lambda: mpc.sweep([]), ("labels or runs", "at least one network")),
        (lambda: mpc.sweep("SM", num_head=[1]), ("'num_head'", "did you mean 'num_heads'")),
        (lambda: mpc.sweep("SM", context_length=[]), ("context_length", "at least one value")),
        (lambda: mpc.sweep("SM", exp_squarings=[5, 99]), ("exp_squarings", "from 1 to 17", "99")),
        (lambda: mpc.sweep("SM", stacks=["spu"]), ("stack", '"spu-2024"', 'got "spu"')),
        (lambda: mpc.sweep("SM", stacks=[]), ("stacks", "at least one stack")),
        (lambda: mpc.sweep("SM", networks=["lan"]), ("network", "lan")),
        (lambda: mpc.sweep("SM", runs=["nowhere"]), ("run.json", "nowhere")),
        (lambda: mpc.sweep("SM").pareto("seconds"), ("objectives", "among", "seconds")),
        (lambda: mpc.sweep("SM").pareto(), ("objectives", "among")),
        (lambda: mpc.simulate("SM+LN+G", **HUGE), ("more than 2^53",)),
    ],
)
def test_bad_grids_are_named(call: Callable[[], Any], named: tuple[str, ...]) -> None:
    assert_refused(call, *named)


def test_a_run_at_other_sizes_has_no_perplexity(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "SM", 30.0)
    own = mpc.sweep(runs=[tmp_path]).rows[0]
    assert own.perplexity == 30.0
    spec = json.loads((tmp_path / "run" / "run.json").read_text())["spec"]
    length = spec["context_length"]
    rows = mpc.sweep(
        runs=[tmp_path], context_length=[length, 2 * length], exp_squarings=[5, 8]
    ).rows
    assert [row.perplexity for row in rows] == [30.0, 30.0, None, None]
    assert rows[1].cost == own.cost


def test_rows_are_json_and_csv() -> None:
    found = mpc.sweep("SM", context_length=[8, 16], networks=["lan-1gbps"])
    assert len(json.loads(json.dumps(found.to_dict()))["rows"]) == 2
    lines = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert [line["context_length"] for line in lines] == ["8", "16"]
    assert float(lines[0]["comm_gb"]) == found.rows[0].comm_gb
    assert "context_length" in to_text(found).splitlines()[0]


def test_a_sweep_is_a_frame_with_its_rows_and_counts() -> None:
    pytest.importorskip("pandas")
    found = mpc.sweep(["SM"], context_length=[8, 16], model="tiny", networks=["lan-1gbps"])
    frame = found.to_dataframe()
    assert list(frame["context_length"]) == [8, 16]
    assert list(frame["ots"]) == [row.cost.ots for row in found.rows]
    assert list(frame["seconds lan-1gbps"]) == [row.seconds["lan-1gbps"] for row in found.rows]


def test_stacks_of_shares_are_timed_on_machines_that_compute_on_shares() -> None:
    stacks = ["spu-0.9.5", "spu-aby3"]
    found = mpc.sweep("SM", model="tiny", stacks=stacks, networks=["lan-1gbps"])
    for row, stack in zip(found.rows, stacks, strict=True):
        one = mpc.simulate("SM", model="tiny", stack=stack).latency("lan-1gbps", "spu-epyc")
        assert row.seconds["lan-1gbps"] == pytest.approx(one.seconds, rel=1e-6)
