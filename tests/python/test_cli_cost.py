"""`aero cost`: minutes, schedules and the paper beside ours."""

import csv
import io
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from aero import cli, mpc
from aero.cli.private import chosen_settings
from aero.fixed_point import Approximations, function_errors
from aero.mpc.described_stacks import described_stack_names
from aero.mpc.generation import private_fields
from aero.mpc.optimization_tables import optimization_table
from aero.mpc.profiles import compute_names, network_names
from aero.mpc.simulation import optimized_stack_names
from aero.private.settings import STACKS
from aero.report import to_csv, to_html, to_text


def run(*arguments: str):
    return CliRunner().invoke(cli.app, ["cost", *arguments])


def test_show_tells_minutes_on_a_network():
    network = "wan-100mbps,uplink_mbps=20"
    done = run("show", "SM+ScFuFFN", "--network", network)
    assert done.exit_code == 0
    assert done.stdout == to_text(mpc.simulate("SM+ScFuFFN"), network) + "\n"
    data = json.loads(run("show", "SM+ScFuFFN", "--network", network, "--json").stdout)
    assert data["latency"]["network"]["uplink_mbps"] == 20.0
    assert "latency" not in json.loads(run("show", "SM+ScFuFFN", "--json").stdout)


def test_costs_load_neither_torch_nor_trainings():
    program = (
        "import sys; from aero import cli; sys.argv[1:] = ['cost', 'show', 'SM']\n"
        "try: cli.main()\n"
        "except SystemExit: print(sorted({'torch', 'numpy', 'aero.train'} & {*sys.modules}))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_fits_a_line_and_names_every_stack_and_network():
    summaries = run("--help").stdout.partition("Commands:")[2]
    assert summaries.split()[0] == "show"
    assert "..." not in summaries
    text = " ".join(run("show", "--help").stdout.replace("-\n", "-").split()).replace("- ", "-")
    names = [*mpc.stack_names(), *optimized_stack_names(), *described_stack_names()]
    for name in (*names, *network_names(), *compute_names()):
        assert name in text


def test_every_command_takes_measures_as_settings():
    fields = {"exp_squarings": 5, "mul_share": True, "num_layers": 2}
    given = [text for name, value in fields.items() for text in ("--set", f"{name}={value}")]
    report = mpc.simulate("SM", **fields)
    assert run("show", "SM", *given).stdout == to_text(report) + "\n"
    scheduled = json.loads(run("schedule", "SM", *given, "--json").stdout)
    assert scheduled["seconds"] == report.latency().schedule().seconds
    assert scheduled["stack_fields"]["exp_squarings"] == 5
    compared = run("compare", "SM", "SM", *given, "--second-set", "exp_squarings=8")
    second = mpc.simulate("SM", **{**fields, "exp_squarings": 8})
    assert compared.stdout == to_text(report.compare(second)) + "\n"
    table = optimization_table("SM", sizes=[(16, None)], **fields)
    assert run("optimizations", "SM", "--size", "16", *given).stdout == to_text(table) + "\n"


def test_results_come_as_text_json_csv_and_page(tmp_path):
    network, compute = "lan-1gbps,uplink_mbps=20", "paper-testbed,threads=8"
    on = ("--network", network, "--compute", compute)
    page = tmp_path / "page.html"
    report = mpc.simulate("SM+R")
    assert run("show", "SM+R", *on, "--csv").stdout == to_csv(report, network, compute)
    done = run("show", "SM+R", *on, "--json", "--html", str(page))
    assert json.loads(done.stdout)["latency"]["compute"]["threads"] == 8
    assert page.read_text() == to_html(report, network, compute)
    assert done.stderr == f"wrote {page}\n"
    both = report.compare(mpc.simulate("SM"))
    done = run("compare", "SM+R", "SM", *on, "--csv", "--html", str(page))
    assert done.stdout == to_csv(both, network, compute)
    assert page.read_text() == to_html(both, network, compute)


def test_a_page_that_cannot_be_written_costs_no_result():
    done = run("show", "SM", "--html", "/none/x.html")
    assert done.exit_code == 2 and done.stdout == to_text(mpc.simulate("SM")) + "\n"
    (line,) = done.stderr.splitlines()
    assert "--html" in line and "/none/x.html" in line


def test_accuracy_is_a_table_of_errors():
    fields = {"exp_squarings": 5, "truncation": "shares"}
    arguments = [text for name, value in fields.items() for text in ("--set", f"{name}={value}")]
    errors = function_errors(Approximations.of_stack("openbumblebee", **fields))
    data = json.loads(run("accuracy", "--stack", "openbumblebee", *arguments, "--json").stdout)
    assert data["errors"] == [error.to_dict() for error in errors]
    text = run("accuracy", "--stack", "openbumblebee", *arguments).stdout
    assert all(error.name in text and f"{error.largest:.1e}" in text for error in errors)
    assert len(run("accuracy", "--csv").stdout.splitlines()) == 1 + len(errors)


def test_generation_tells_time_and_a_line_per_token(tmp_path):
    found = mpc.simulate_generation(
        "SM", model="tiny", context_length=128, new_tokens=3, stack="aero-optimized-generation"
    )
    seconds = found.seconds_per_token("lan-1gbps")
    given = ("generate", "SM", "--model", "tiny", "--new-tokens", "3", "--network", "lan-1gbps")
    arguments = (*given, "--stack", "aero-optimized-generation")
    text = run(*arguments).stdout
    assert f"prompts {seconds[0]:,.1f} s, then {sum(seconds[1:]) / 2:,.1f} s per token" in text
    assert f"{sum(seconds) / 60:,.2f} minutes" in text
    assert json.loads(run(*arguments, "--json").stdout)["seconds_per_token"] == list(seconds)
    lines = list(csv.DictReader(io.StringIO(run(*arguments, "--csv").stdout)))
    assert [float(line["seconds"]) for line in lines] == list(seconds)
    assert [line["keys"] for line in lines] == ["128", "129", "130"]
    assert sum(float(line["comm_bytes"]) for line in lines) == found.comm_bytes
    run(*arguments, "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert page == to_html(found, "lan-1gbps")
    assert all(f"<td>{one:,.1f}</td>" in page for one in seconds)


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


def test_schedule_tells_what_faster_parts_would_change():
    faster = ("--what-if", "softmax=2", "--what-if", "lm head=inf")
    schedule = mpc.simulate("SM").latency().schedule()
    softmax = schedule.what_if(kind="softmax", times_faster=2)
    text = run("schedule", "SM", *faster).stdout
    assert f"{softmax / 60:.2f} minutes if softmax were 2 times faster" in text
    assert "minutes if lm head were inf times faster" in text
    data = json.loads(run("schedule", "SM", *faster, "--json").stdout)
    assert data["what_if"] == {"softmax": softmax, "lm head": schedule.what_if(kind="lm head")}


@pytest.mark.parametrize("protocol", STACKS)
def test_every_protocol_is_priced_with_the_settings_of_aero_private(protocol: str) -> None:
    settings = chosen_settings(None, protocol)
    fields = mpc.stack_fields(settings.stack)
    priced = {**fields, **private_fields(settings.stack)}
    assert priced == {**fields, **settings.stack_fields()}


def test_generation_is_priced_as_aero_private_runs_it() -> None:
    given = ("SM", "--model", "tiny", "--new-tokens", "3", "--json")
    plain = json.loads(run("generate", *given).stdout)
    private = chosen_settings(None)
    sizes = {"model": "tiny", "context_length": 128}
    expected = mpc.simulate_generation(
        "SM", new_tokens=3, stack=private.stack, **sizes, **private.stack_fields()
    )
    assert plain["stack"] == private.stack
    assert plain["stack_fields"] == dict(expected.prefill.stack_fields)
    assert plain["per_token"] == [cost.to_dict() for cost in expected.per_token]
    in_python = mpc.simulate_generation("SM", new_tokens=3, **sizes)
    assert in_python.to_dict() == expected.to_dict()
    for protocol in ("semi2k", "aby3"):
        other = json.loads(run("generate", *given, "--protocol", protocol).stdout)
        private = chosen_settings(None, protocol)
        fields = private.stack_fields() | {"setup": False}
        found = mpc.simulate_generation("SM", new_tokens=3, stack=private.stack, **sizes, **fields)
        assert other["per_token"] == [cost.to_dict() for cost in found.per_token]
    both = run("generate", *given, "--protocol", "aby3", "--stack", "spu-aby3")
    assert both.exit_code == 2 and "goes without --stack" in both.stderr
    optimized = json.loads(run("generate", *given, "--stack", "aero-optimized-generation").stdout)
    assert optimized["comm_bytes"] < plain["comm_bytes"]
    changed = json.loads(run("generate", *given, "--set", "client_one_hot=false").stdout)
    assert changed["comm_bytes"] > plain["comm_bytes"]


def test_the_command_prices_ten_thousand_combinations_as_single_prices():
    labels = ("SM+LN+G", "SM+FN+R", "SM+LN+R", "SM+ScFuFFN", "SM")
    grid = {"context_length": range(8, 1001, 8), "num_layers": range(1, 9), "exp_squarings": (5, 8)}
    given = [word for label in labels for word in ("--label", label)]
    given += [
        word
        for name, values in grid.items()
        for word in ("--set", f"{name}={','.join(map(str, values))}")
    ]
    rows = list(csv.DictReader(io.StringIO(run("sweep", *given, "--csv").stdout)))
    assert len(rows) == 10_000
    assert len({tuple(row[name] for name in ("label", *grid)) for row in rows}) == 10_000
    for row in rows[::1777]:
        sizes = {name: int(row[name]) for name in grid}
        assert float(row["comm_gb"]) == mpc.simulate(row["label"], **sizes).comm_bytes / 1e9
