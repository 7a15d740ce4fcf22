"""All that latencies, schedules, profiles and reports say of themselves, field by field."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.python.refusals import assert_refused

from aero import _core, mpc
from aero.mpc.latency import Duration
from aero.mpc.optimization_tables import OptimizationRow, OptimizationTable
from aero.tables import in_units

TINY: dict[str, Any] = {"model": "tiny", "context_length": 8}


def json_of(value: Any) -> Any:
    return json.loads(json.dumps(value))


# --- latencies, schedules and profiles ------------------------------------------------------------


def test_a_duration_is_the_sum_of_its_three_parts() -> None:
    duration = Duration(1_000_000_000, 20_000_000_000, 99_000_000_000)
    assert (duration.total_ns, duration.seconds, duration.minutes) == (120_000_000_000, 120.0, 2.0)
    assert duration.to_dict() == {
        "seconds": 120.0,
        "compute_seconds": 1.0,
        "transfer_seconds": 20.0,
        "rounds_seconds": 99.0,
    }
    assert duration + Duration(1, 2, 3) == Duration(1_000_000_001, 20_000_000_002, 99_000_000_003)


def test_a_latency_is_told_in_full() -> None:
    report = mpc.simulate("SM+LN+G", **TINY)
    latency = report.latency("lan-1gbps", "spu-epyc")
    layers = [
        sum(
            (t for o, t in zip(report.operations, latency.operations, strict=True) if o.layer == n),
            start=Duration(0, 0, 0),
        )
        for n in (0, 1, None)
    ]
    assert json_of(latency.to_dict()) == json_of(
        {
            "network": mpc.network_profile("lan-1gbps").to_dict(),
            "compute": mpc.compute_profile("spu-epyc").to_dict(),
            "unchecked": [
                f"network lan-1gbps: {mpc.network_profile('lan-1gbps').source}",
                f"compute spu-epyc: {mpc.compute_profile('spu-epyc').source}",
                "no run confirms minutes on this network with these machines",
                "rounds: software between messages counts as nothing",
            ],
            "minutes": latency.total.total_ns / 60e9,
            **latency.total.to_dict(),
            "by_kind": {kind: one.to_dict() for kind, one in latency.by_kind.items()},
            "by_layer": [one.to_dict() for one in layers[:2]],
            "outside_layers": layers[2].to_dict(),
            "operations": [one.to_dict() for one in latency.operations],
        }
    )
    assert latency.by_kind.keys() == report.by_kind.keys()
    assert list(latency.by_kind) == list(dict.fromkeys(one.kind for one in report.operations))
    assert repr(latency) == f"<Latency SM+LN+G on lan-1gbps: {latency.minutes:.2f} min>"
    assert report.latency() == report.latency("paper-testbed", "paper-testbed")
    for profiles in (("paper-testbed", "none"), ("lan-1gbps", "paper-testbed")):
        assert len(report.latency(*profiles).unchecked) >= 3
    quick = mpc.network_profile("lan-1gbps", software_seconds=0.001)
    assert len(report.latency(quick).unchecked) == 3


@pytest.mark.parametrize("overlap", [False, True])
def test_a_schedule_is_told_in_full(overlap: bool) -> None:
    latency = mpc.simulate("SM+R", **TINY).latency("lan-1gbps")
    schedule = latency.schedule(overlap=overlap)
    assert (schedule.overlap, schedule.full_duplex) == (overlap, True)
    if overlap:
        assert latency.schedule() == schedule
    assert list(schedule.busy_seconds) == [
        "client compute", "server compute", "client to server", "server to client",
    ]  # fmt: skip
    assert schedule.seconds == schedule.makespan_ns / 1e9
    assert schedule.minutes == schedule.makespan_ns / 60e9
    assert schedule.utilization == {
        name: busy / schedule.seconds for name, busy in schedule.busy_seconds.items()
    }
    path = [schedule.operations[index] for index in schedule.critical_path]
    assert schedule.to_dict() == {
        "overlap": overlap,
        "seconds": schedule.seconds,
        "utilization": schedule.utilization,
        "critical_path": list(schedule.critical_path),
        "bounds": {
            part: math.fsum(getattr(one, f"{part}_seconds") for one in path)
            for part in ("compute", "transfer", "rounds", "waiting")
        },
        "operations": [
            {
                "name": one.operation.name,
                "layer": one.operation.layer,
                "kind": one.operation.kind,
                "start_seconds": one.start_seconds,
                "finish_seconds": one.finish_seconds,
                "waiting_seconds": one.waiting_seconds,
                "bound": one.bound,
            }
            for one in schedule.operations
        ],
    }
    count = len(schedule.operations)
    assert repr(schedule) == f"<Schedule of {count} operations: {schedule.minutes:.2f} min>"
    for one in schedule.operations:
        parts = one.compute_seconds + one.transfer_seconds + one.rounds_seconds
        took = one.finish_seconds - one.start_seconds
        assert parts + one.waiting_seconds == pytest.approx(took, abs=1e-12)


def test_seconds_of_a_schedule_are_whole_nanoseconds_and_nothing_near_them() -> None:
    # Attention and feed-forward side by side: the one waits for the other.
    latency = mpc.simulate("SM+R", **TINY, parallel_residual=True).latency("lan-1gbps")
    operations = latency.schedule().operations
    for part in ("start", "finish", "compute", "transfer", "rounds", "waiting"):
        seconds = [getattr(one, f"{part}_seconds") for one in operations]
        assert max(seconds) > 0.001, part
        assert seconds == [round(value * 1e9) / 1e9 for value in seconds], part


def test_what_if_each_asks_what_if_of_every_key() -> None:
    schedule = mpc.simulate("SM+R", **TINY).latency("lan-1gbps").schedule(overlap=False)
    assert schedule.what_if_each() == schedule.what_if_each("kind", times_faster=math.inf)
    for by in ("kind", "layer", "name", "operation"):
        found = schedule.what_if_each(by, times_faster=3)
        for key, seconds in found.items():
            if key is not None:
                assert seconds == schedule.what_if(times_faster=3, **{by: key})
    layer_and_name = schedule.what_if(layer=1, name="scores", operation=None)
    (index,) = [
        i
        for i, one in enumerate(schedule.operations)
        if (one.operation.layer, one.operation.name) == (1, "scores")
    ]
    assert (
        layer_and_name
        == schedule.what_if(operation=index)
        == schedule.what_if_each("operation")[index]
    )


MACHINE = {
    "network": {"uplink_mbps": 50, "downlink_mbps": 60, "round_trip_seconds": 0.25},
    "compute": {"threads": 3, "ct_pt_product_seconds": 0.5, "embedding_product_seconds": 0.125},
    "source": "measured\nhere",
}


def test_profiles_are_read_from_a_calibration(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    path.write_text(json.dumps(MACHINE))
    network, compute = mpc.network_profile(str(path)), mpc.compute_profile(str(path))
    expected = mpc.NetworkProfile(50, 60, 0.25, name=str(path), source="measured here")
    assert network == expected
    assert compute == mpc.ComputeProfile(3, 0.5, 0.125, name=str(path), source="measured here")
    changed = mpc.network_profile(f"{path}, uplink_mbps=7,full_duplex=false", downlink_mbps=8)
    assert changed == mpc.NetworkProfile(
        7,
        8,
        0.25,
        full_duplex=False,
        name=f"{path}, uplink_mbps=7,full_duplex=false, changed",
        source="measured here; changed by the user",
    )
    assert mpc.compute_profile(f"{path},threads=4").threads == 4
    path.write_text(json.dumps({**MACHINE, "network": {"uplink_mbps": 50}}))
    with pytest.raises(ValueError, match="expected the network of `aero private calibrate`, got "):
        mpc.network_profile(str(path))


@pytest.mark.parametrize(("text", "value"), [("true", True), ("True", True), ("False", False)])
def test_a_switch_of_a_profile_is_spelled_either_way(text: str, value: bool) -> None:
    assert mpc.network_profile(f"lan-1gbps,full_duplex={text}").full_duplex is value


# --- reports, comparisons and tables --------------------------------------------------------------


def test_a_report_is_told_in_full() -> None:
    report = mpc.simulate("SM+R", **TINY, exp_squarings=6, threads=2)
    found = {
        "label": "SM+R",
        "spec": report.spec.to_dict(),
        "sizes": {"num_layers": 2, "num_heads": 2, "width": 32, "context_length": 8,
                  "vocab_size": 256},
        "stack": "spu-2024",
        "stack_fields": report.stack_fields,
        **report.total.to_dict(),
        "base_bytes": 0.0,
        "by_kind": {kind: cost.to_dict() for kind, cost in report.by_kind.items()},
        "by_layer": [cost.to_dict() for cost in report.by_layer],
        "outside_layers": report.outside_layers.to_dict(),
        "operations": [
            {
                "name": one.name,
                "layer": one.layer,
                "kind": one.kind,
                "shape": one.shape,
                "inputs": list(one.inputs),
                "cost": one.cost.to_dict(),
                "evaluator": one.evaluator,
                "token_by_token": one.token_by_token,
            }
            for one in report.operations
        ],
        "unchecked": list(report.unchecked),
        "notes": [],
        "trust": "two parties, semi-honest, no dealer",
        "lowerings": {part: list(lines) for part, lines in report.lowerings.items()},
    }  # fmt: skip
    assert report.lowerings["act"] == ("max(x, 0)",)
    assert json_of(report.to_dict()) == json_of(found)
    for profiles in (("lan-1gbps",), ("wan-100mbps", "none")):
        timed = {**found, "latency": report.latency(*profiles).to_dict()}
        assert json_of(report.to_dict(*profiles)) == json_of(timed)
    assert report.stack_text == "spu-2024 with exp_squarings=6, threads=2"
    assert mpc.simulate("SM", **TINY).stack_text == "spu-2024"
    gigabytes = in_units(report.comm_bytes)
    assert repr(report) == f"<CostReport SM+R on spu-2024: {gigabytes} GB, {report.rounds} rounds>"


def test_a_comparison_names_what_differs() -> None:
    first = mpc.simulate("SM+R", **TINY)
    second = mpc.simulate("SM", model="tiny", context_length=16, num_layers=3, exp_squarings=6)
    compared = first.compare(second)
    names = (
        "SM+R, L 2, T 8, on spu-2024",
        "SM, L 3, T 16, on spu-2024 with exp_squarings=6",
    )
    assert compared.names() == names
    ratio = first.comm_bytes / second.comm_bytes
    assert repr(compared) == (
        f"<CostComparison of {names[0]} with {names[1]}: {ratio:.2f} times the bytes>"
    )
    for profiles in ((), ("lan-1gbps",), ("lan-1gbps", "none")):
        assert compared.to_dict(*profiles) == {
            "first": names[0],
            "second": names[1],
            "ratio": ratio,
            "rows": compared.rows(*profiles),
            "notes": list(compared.notes()),
            "unchecked": list(compared.unchecked(*profiles)),
            "trust": first.trust,
            "lowerings": {
                "act": ["max(x, 0)"],
                "argmax": ["jnp.argmax"],
                "embed": list(first.lowerings["embed"]),
                "softmax, first": list(first.lowerings["softmax"]),
                "softmax, second": list(second.lowerings["softmax"]),
            },
        }
    assert compared.times(None, None) is None
    assert compared.rows("lan-1gbps", "none")[-1]["first_seconds"] == (
        first.latency("lan-1gbps", "none").seconds
    )
    every = mpc.simulate("SM", model="mini", context_length=8).compare(first)
    assert every.names()[1].startswith("SM+R, L 2, H 2, d 32, T 8, V 256, on")


def test_savings_are_told_only_where_both_are_known() -> None:
    base = OptimizationRow(None, (4.0, 8.0, None), (1, 2, None))
    row = OptimizationRow(mpc.optimizations()[0], (3.0, None, 5.0), (1, None, 3))
    table = OptimizationTable("A", "s", ((8, None), (9, 7), (9, 8)), (base, row), (row,), ())
    assert table.savings(row) == (-0.25, None, None)
    told = table.to_dict()
    assert told["cumulative"][0]["saving"] == [0.0, 0.0, None]
    assert told["sizes"] == [[8, None], [9, 7], [9, 8]]
    assert told["alone"] == [
        {
            "optimization": "private_weights",
            "comm_bytes": [3.0, None, 5.0],
            "rounds": [1, None, 3],
            "saving": [-0.25, None, None],
        }
    ]
    assert repr(table) == "<OptimizationTable of A on s, 1 rows>"


def test_a_record_of_an_optimization_is_told_in_full() -> None:
    for one in mpc.optimizations():
        assert one.to_dict() == {**asdict(one), "fields": dict(one.fields)}
    tiles = {one.name: one.fields.get("matmul_tile_bytes") for one in mpc.optimizations()}
    assert tiles["mul_share"] == 1024**3 and "1 GiB" in mpc.optimizations()[1].title
    assert [one.name for one in mpc.optimizations() if not one.listed] == [
        "cheapest_layouts", "share_ciphertexts", "fill_ciphertexts", "pack_triangle",
        "fold_score_scale", "argmax_ties=False", "comparison_bits=40",
    ]  # fmt: skip


def test_sizes_of_a_network_may_be_of_numpy_and_are_checked() -> None:
    numpy = pytest.importorskip("numpy")
    report = mpc.simulate(
        "SM", model="tiny", context_length=numpy.int64(8), vocab_size=numpy.int32(9)
    )
    assert (report.spec.context_length, report.spec.vocab_size) == (8, 9)
    assert report == mpc.simulate("SM", model="tiny", context_length=8, vocab_size=9)
    for name in ("context_length", "vocab_size"):
        message = f"^simulate: {name} must be a bool, a number or a str, got list$"
        with pytest.raises(ValueError, match=message):
            mpc.simulate("SM", model="tiny", **{name: [8]})
    with pytest.raises(ValueError, match=r"^simulate: threads must be a bool, .*got list$"):
        mpc.operation_cost("relu", 8, threads=[8])
    spec = report.spec
    assert mpc.simulate(spec, vocab_size=11, num_layers=1).spec == spec.replace(
        vocab_size=11, num_layers=1
    )
    with pytest.raises(ValueError, match=r"a label, an ArchitectureSpec, .*got int$"):
        mpc.simulate(3)  # type: ignore[arg-type]


def test_a_stack_that_is_none_is_told_which_there_are() -> None:
    known = [*_core.stack_names(), *_core.optimized_stack_names(), "blb", "sigma"]
    named = [f'"{name}"' for name in known]
    assert_refused(lambda: mpc.stack_fields("spu"), "stack", *named, '.json description, got "spu"')
