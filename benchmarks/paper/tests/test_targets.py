import re

import pytest
from tests.python.refusals import assert_refused
from typer.testing import CliRunner

from aero.architecture import ArchitectureSpec
from aero.internals.errors import TrainingError
from aero.paper import paper_tables
from aero.train.one_run import model_config
from benchmarks.paper.cells import plan_target, unique_cells
from benchmarks.paper.command import app
from benchmarks.paper.figures import FIGURE_KINDS
from benchmarks.paper.run_statistics import STATISTICS
from benchmarks.paper.scales import load_scale, scale_names
from benchmarks.paper.targets import load_target, read_target, target_names

# The paper's reports on training; its other tables and figures are about cost or drawings.
PUBLISHED = {
    *(f"table{n}" for n in (2, 3, 4, 5, 6, 7, 8, 9)),
    *(f"figure{n}" for n in (3, 4, 5, 6, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19)),
}


def test_every_table_and_figure_about_training_is_a_target():
    assert set(target_names()) >= PUBLISHED


@pytest.mark.parametrize("scale", scale_names())
@pytest.mark.parametrize("name", target_names())
def test_every_target_gives_runs_that_can_be_planned(name, scale, tmp_path):
    if not load_target(name).exists_at(scale):
        with pytest.raises(TrainingError, match=f"exists at --scale mini only, got '{scale}'"):
            plan_target(name, scale)
        return
    plan = plan_target(name, scale)
    for row in plan.target.rows:
        for cell in plan.cells_by_row[row.name]:
            run = cell.without_origins().planned(tmp_path)
            assert run.action == "train"
            assert run.label == cell.label
            assert run.spec.context_length == row.context_length
            assert run.folder.path == cell.without_origins().folder(tmp_path).path


@pytest.mark.parametrize("name", target_names())
def test_every_target_names_statistics_and_figures_that_exist(name):
    target = load_target(name)
    claimed = {
        name for claim in target.claims for part in claim.comparisons for name in part.statistics
    }
    assert claimed | set(target.show) <= {*STATISTICS, "change"}
    assert set(target.figures) <= set(FIGURE_KINDS)
    assert target.claims, "a target without a claim judges nothing"


@pytest.mark.parametrize("table", [2, 3, 4, 5, 6, 8, 9])
def test_rows_and_numbers_of_tables_are_the_published_ones(table):
    rows = load_target(f"table{table}").rows
    printed = [row for row in paper_tables() if row["table"] == table]
    assert [(row.label, row.paper.get("perplexity")) for row in rows] == [
        (row["label"], row["perplexity"]) for row in printed
    ]
    assert [row.paper["diverged"] for row in rows] == [float(row["diverged"]) for row in printed]


def test_the_books_table_has_a_row_per_budget():
    rows = {row.name: row for row in load_target("table7").rows}
    assert len(rows) == 24
    regularized = [rows[f"EReg(SM(t)+ScFuFFN), {factor}x"] for factor in (1, 2, 4)]
    assert [row.paper["perplexity"] for row in regularized] == [31.54, 28.70, 26.55]
    tokens = [
        plan_target("table7", "paper").cells_by_row[row.name][0].recipe.training.tokens
        for row in regularized
    ]
    assert tokens == [1_200_000_000, 2_400_000_000, 4_800_000_000]


def test_targets_share_cells_of_equal_configuration():
    plans = [plan_target(name, "mini", seeds=1) for name in ("table2", "figure3", "figure12")]
    assert len(unique_cells(plans)) == 6
    table, margins = plan_target("table4", "mini"), plan_target("figure18", "mini")
    assert (
        table.cells_by_row["EReg(SM(t)+ScFuFFN)"][0].key
        == margins.cells_by_row["gamma = 0.20"][0].key
    )
    assert len({cell.key for cell in margins.cells if cell.seed == 1}) == 7


def test_first_seeds_come_first():
    seeds = [cell.seed for cell in plan_target("table9", "mini", seeds=3).cells]
    assert seeds == [1] * 10 + [2] * 10 + [3] * 10


@pytest.mark.parametrize(
    ("scale", "model", "label", "expected"),
    [
        ("paper", "gpt2", "SM+ScFuFFN_i6", "SM+ScFuFFN_i6"),
        ("mini", "gpt2", "SM+ScFuFFN_i6", "SM+ScFuFFN_i3"),
        ("mini", "gpt2", "SM+ScFuFFN_i10", "SM+ScFuFFN_i5"),
        ("mini", "gpt2", "SOTA:SM+ScFuFFN_i1", "SOTA:SM+ScFuFFN_i1"),
        ("mini", "gpt2-18l", "EReg(SM(t)+ScFuFFN_i4)", "EReg(SM(t)+ScFuFFN_i2)"),
        ("mini", "gpt2", "SM+LN+G", "SM+LN+G"),
    ],
)
def test_pruning_follows_the_depth_of_the_scale(scale, model, label, expected):
    assert load_scale(scale).label(label, model) == expected


def test_paper_scale_is_what_the_paper_states():
    plan = plan_target("table4", "paper")
    run = plan.cells[0].planned("nowhere")
    assert run.spec == ArchitectureSpec.from_label("SM+LN+G", model="gpt2")
    assert run.recipe.training.tokens == 2_100_000_000
    assert run.recipe.data.source == "huggingface-course/codeparrot-ds-train"
    books = plan_target("table7", "paper").cells[0].planned("nowhere")
    assert (books.spec.context_length, books.spec.vocab_size) == (512, 16_384)


def test_the_pythia_of_mini_rotates_and_is_parallel():
    spec = plan_target("table8", "mini").cells[0].planned("nowhere").spec
    assert spec.rotary_fraction == 0.25 and spec.parallel_residual and not spec.tied_embeddings
    assert (spec.num_layers, spec.num_heads, spec.width) == (6, 4, 128)


def test_a_setting_with_its_default_value_names_no_other_cell():
    plain = plan_target("table2", "mini").cells[0]
    same = plan_target("table2", "mini", settings=["optimizer.epsilon=1e-8"]).cells[0]
    other = plan_target("table2", "mini", settings=["optimizer.epsilon=1e-6"]).cells[0]
    assert plain.key == same.key != other.key


def test_seeds_count_from_the_first_that_a_target_names():
    description = {"title": "t", "paper": "p", "show": ["perplexity"], "rows": ["SM+G", "SM+R"]}
    plan = plan_target(read_target("probe", {**description, "first_seed": 5}), "mini", seeds=3)
    assert [cell.seed for cell in plan.cells] == [5, 5, 6, 6, 7, 7]
    for wrong in (
        {"first_seed": 0},
        {"first_seed": True},
        {"first_seed": 5, "rates": [1e-3, 2e-3]},
    ):
        with pytest.raises(TrainingError, match="probe: first_seed must be an integer from 1"):
            read_target("probe", {**description, **wrong})


def test_a_row_that_wants_few_seeds_gets_no_more_than_them():
    description = {"title": "t", "paper": "p", "show": ["perplexity"]}
    rows = ["SM+G", {"label": "SM+R", "seeds": 1}, {"label": "SM", "seeds": 3}]
    target = read_target("probe", {**description, "rows": rows})
    for asked, expected in ((None, [2, 1, 3]), (2, [2, 1, 2]), (5, [5, 1, 3])):
        plan = plan_target(target, "mini", seeds=asked)
        assert [len(cells) for cells in plan.cells_by_row.values()] == expected
        assert [cell.seed for cell in plan.cells] == sorted(cell.seed for cell in plan.cells)


def test_students_have_a_folder_of_their_own_and_the_teacher_of_their_seed():
    rows = [
        {"name": "taught", "label": "SM+R", "distill_from": "SM+G", "seeds": 3},
        {"label": "SM+G", "seeds": 2},
        "SM+R",
    ]
    description = {"title": "t", "paper": "p", "show": ["perplexity"], "rows": rows}
    cells = plan_target(read_target("probe", description), "mini").cells_by_row
    assert list(cells) == ["taught", "SM+G", "SM+R"]
    assert [cell.origins["distill_from"].key for cell in cells["taught"]] == [
        cells["SM+G"][index].key for index in (0, 1, 1)
    ]
    assert cells["taught"][0].key.endswith("/sm-r-distilled-seed1")
    assert cells["taught"][0].group != cells["SM+R"][0].group == cells["SM+G"][0].group


def test_rows_that_start_from_others_have_folders_of_their_own():
    cut = {"annealing.schedule": "none"}
    start = {"label": "SM+R", "start_from": "SM+G"}
    rows = [
        {**start, "name": "annealed"},
        {**start, "name": "cut", "settings": cut},
        {**start, "name": "taught", "settings": cut, "distill_from": "SM+G"},
        "SM+G",
    ]
    cells = plan_target(read_target("probe", {**DESCRIPTION, "rows": rows}), "mini").cells_by_row
    names = [cells[row][1].key.partition("/")[2] for row in ("annealed", "cut", "taught")]
    assert names == [
        "sm-r-annealed-seed2",
        "sm-r-continued-seed2",
        "sm-r-continued-distilled-seed2",
    ]
    assert len({cells[row][0].group for row in cells}) == 4
    source = cells["SM+G"][1]
    assert cells["cut"][1].origins == {"start_from": source}
    assert cells["taught"][1].origins == {"start_from": source, "distill_from": source}
    assert cells["taught"][1].without_origins().recipe == source.recipe


def test_a_baseline_has_the_data_and_the_tokens_of_its_row():
    conditions = {"": {}, ", demo": {"dataset": "demo"}, ", 10x": {"tokens_factor": 10}}
    described = [
        {"dataset": "front", **settings, "name": label + name, "label": label}
        for name, settings in conditions.items()
        for label in ("SM+LN+G", "SM+R")
    ]
    equal = {**described[1], "name": "SM+R, equal FLOPs", "flops_of": "SM+LN+G"}
    description = {**DESCRIPTION, "rows": [*described, equal], "baseline": "SM+LN+G"}
    target = read_target("probe", {**description, "scales": ["mini"]})
    rows = {row.name: row for row in target.rows}

    def baseline(name):
        found = target.baseline_of(rows[name])
        return None if found is None else found.name

    assert baseline("SM+R") == baseline("SM+R, equal FLOPs") == "SM+LN+G"
    assert baseline("SM+R, demo") == "SM+LN+G, demo"
    assert baseline("SM+R, 10x") == "SM+LN+G, 10x"


DESCRIPTION = {"title": "t", "paper": "p", "rows": ["SM+G", "SM+R"], "show": ["perplexity"]}


def probed(**change):
    return lambda: read_target("probe", {**DESCRIPTION, **change})


def row(**entries):
    return probed(rows=["SM+G", {"label": "SM+R", **entries}])


def claim(condition):
    return probed(claims=[{"claim": "c", "where": "w", "holds_if": condition}])


@pytest.mark.parametrize(
    ("read", "named"),
    [
        (probed(row=[]), ("'row'", "did you mean 'rows'")),
        (probed(rows=["SM+G", "SM+G"]), ("two rows", "'SM+G'")),
        (row(setting={}), ("unknown key 'setting'",)),
        (row(distill_from="SM"), ("probe: distill_from", "it has SM+G", "no row 'SM'")),
        (row(start_from="SM+R"), ("probe: start_from", "it has SM+G", "no row 'SM+R'")),
        (probed(baseline="SM"), ("it has SM+G, SM+R", "no row 'SM'")),
        (claim("perplexity: SM+G < SM"), ("no row 'SM'",)),
        (claim("perplexity of SM+G"), ("'statistic: row < row'",)),
        (lambda: load_target("tabel2"), ("did you mean 'table2'", "tabel2")),
        (lambda: load_scale("large"), ("--scale", "mini, small, paper", "large")),
    ],
)
def test_wrong_descriptions_are_errors_that_say_where(read, named):
    assert_refused(read, *named, error=TrainingError)


def test_the_network_of_the_authors_code_is_told_apart_from_the_printed_one():
    code = ["model.final_norm=layer", "model.embedding_dropout=0.1"]
    cells = [
        plan_target("table2", "paper", settings=settings).cells_by_row["SM+G"][0]
        for settings in ([], code)
    ]
    assert cells[0].group != cells[1].group
    runs = [cell.planned("nowhere") for cell in cells]
    assert [run.spec.final_norm for run in runs] == ["none", "layer"]
    assert [model_config(run).embedding_dropout for run in runs] == [0.0, 0.1]


def test_settings_of_the_command_line_reach_every_network(tmp_path):
    arguments = ["table2", "--dry-run", "--output", str(tmp_path), "--set"]
    groups = []
    for setting in ("model.final_norm=none", "model.final_norm=layer", "model.final_nrm=layer"):
        result = CliRunner().invoke(app, [*arguments, setting, "--data", str(tmp_path)])
        groups.append(set(re.findall(r"cells/(\S+)/", result.stdout)))
    assert groups[0] and groups[1] and not groups[0] & groups[1]
    assert result.exit_code == 2 and "unknown setting 'model.final_nrm'" in result.stderr
