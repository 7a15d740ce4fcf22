import json

from typer.testing import CliRunner

from aero.cli import app


def test_info_of_a_run_shows_how_it_started(make_run):
    def invoke(*arguments):
        return CliRunner().invoke(app, ["info", *arguments])

    folder = make_run("SM+G", info={"first_score_deviations": [0.0504, None]})
    result = invoke(str(folder))
    assert "deviation by layer 0.050 NaN" in result.stdout
    facts = json.loads(invoke(str(make_run("SM+R")), "--json").stdout)
    assert (facts["network"], facts["first scores"]) == ("SM+R", "not measured")
    assert "holds no run.json" in invoke(str(folder / "model")).stderr
