"""`aero cost`: minutes, schedules and the paper beside ours."""

import json

import pytest
from typer.testing import CliRunner

from aero import cli, mpc


def run(*arguments: str):
    return CliRunner().invoke(cli.app, ["cost", *arguments])


def test_show_tells_minutes_on_a_network():
    network = "wan-100mbps,uplink_mbps=20"
    done = run("show", "SM+ScFuFFN", "--network", network)
    assert done.exit_code == 0
    assert done.stdout == mpc.simulate("SM+ScFuFFN").to_text(network) + "\n"
    data = json.loads(run("show", "SM+ScFuFFN", "--network", network, "--json").stdout)
    assert data["latency"]["network"]["uplink_mbps"] == 20.0
    assert "latency" not in json.loads(run("show", "SM+ScFuFFN", "--json").stdout)


@pytest.mark.parametrize(
    ("network", "message"),
    [("wan", "network must be"), ("lan-1gbps,uplink_mbps=0", "uplink_mbps must be a number from")],
)
def test_bad_networks_end_with_one_line(network, message):
    done = run("show", "SM", "--network", network)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_schedule_tells_bounds_and_writes_a_trace(tmp_path):
    trace = tmp_path / "trace.json"
    done = run("schedule", "SM+R", "--network", "lan-1gbps", "--trace", str(trace))
    assert done.exit_code == 0
    assert "with overlap" in done.stdout
    assert "minutes without" in done.stdout
    assert json.loads(trace.read_text())["traceEvents"]
    data = json.loads(run("schedule", "SM+R", "--no-overlap", "--compute", "none", "--json").stdout)
    assert data["utilization"]["client compute"] == 0
    assert run("schedule", "SM+R", "--compute", "gpu").exit_code == 2


def test_reproduce_prints_the_tables_and_writes_the_figures(tmp_path):
    done = run("reproduce", "--output", str(tmp_path))
    assert done.exit_code == 0
    assert done.stdout == mpc.reproduce().to_text() + "\n"
    assert {path.name for path in tmp_path.iterdir()} == {
        "reproduction.txt", "reproduction.json", "figure-1.png", "figure-15.png"
    }  # fmt: skip
    assert len(json.loads(run("reproduce", "--json").stdout)["rows"]) == 27
    assert run("reproduce", "--stack", "spu").exit_code == 2
