"""Text that a training leaves out, and rows that it never uses: said at once, or refused."""

import dataclasses
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from aero.internals.errors import TrainingError
from aero.internals.records import as_dict, changed
from aero.report.contents import assemble
from aero.report.networks import group_runs
from aero.report.runs import read_run
from aero.train.data.corpora import UNDECODABLE, scan_corpus
from aero.train.data.corpus_files import find_corpus
from aero.train.data.prepared_data import open_prepared_data, prepare_data
from aero.train.forecast import forecast
from aero.train.training import train_runs

from .conftest import WORDS, plan_one, stopped_at, write_corpus


def refusal(path: Path, share: float = 0.2) -> str:
    with pytest.raises(TrainingError) as error:
        scan_corpus(find_corpus(path), share)
    return str(error.value)


def verses(seed: int, lines: int = 100) -> str:
    generator = random.Random(seed)
    return "".join(" ".join(generator.choices(WORDS, k=9)) + "\n" for _ in range(lines))


@pytest.fixture
def recipe_of(tiny_recipe):
    def of(source: Path, **data):
        section = dataclasses.replace(tiny_recipe.data, source=str(source), **data)
        training = dataclasses.replace(tiny_recipe.training, tokens=512)  # two steps
        return dataclasses.replace(tiny_recipe, data=section, training=training)

    return of


# --- refused ------------------------------------------------------------------------------------


LOST = {
    f"{n:02}.txt": (f"größe {n}\n" * 50).encode("utf-8" if n < 2 else "latin-1") for n in range(12)
}
ROWS = [
    *(json.dumps({"text": f"text {n}"}) for n in range(3)),
    "",
    *(json.dumps({"body": f"text {n}"}) for n in range(5)),
]


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (LOST, ("10 of 12 documents", "80% of the bytes", "02.txt", "UTF-8", "iconv")),
        (
            {"rows.jsonl": "\n".join(ROWS).encode()},
            ("5 of 8 documents", "line 5", "text or content"),
        ),
        ({"book.txt": b"word " * 40_000}, ("fold -s", "got 1")),
    ],
)
def test_a_corpus_that_is_mostly_no_text_is_refused_by_name(files, named, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    source = tmp_path / next(iter(files)) if len(files) == 1 else tmp_path
    told = refusal(source)
    assert all(text in told for text in (str(source), *named)), told
    assert ("iconv" in told) == ("iconv" in named)


def test_a_fifth_may_be_no_text_and_not_a_byte_more(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"{number}" * 10)
    (tmp_path / "z.txt").write_bytes(b"\xff" * 10)
    scan = scan_corpus(find_corpus(tmp_path), 0.3)
    assert (scan.lost_bytes, scan.first_lost) == (10, "z.txt")
    (tmp_path / "z.txt").write_bytes(b"\xff" * 11)
    assert "1 of 5 documents" in refusal(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("alone", [True, False])
def test_no_part_of_a_file_of_wide_characters_passes_for_text(alone, encoding, tmp_path):
    """Of ASCII such a file is valid UTF-8 with zeros between the letters."""
    for number in range(1 if alone else 3):
        (tmp_path / f"{number}.txt").write_bytes(verses(number, 5000).encode(encoding))
    told = refusal(tmp_path)
    assert "100% of the bytes" in told and "0.txt" in told


def test_a_zero_in_a_line_of_json_is_a_character_like_others(tmp_path):
    rows = [json.dumps({"text": f"a\0b{n}"}) for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    assert scan_corpus(find_corpus(tmp_path), 0.3).count(UNDECODABLE) == 0


def test_errors_about_a_file_name_the_file(tmp_path, recipe_of):
    book = tmp_path / "book.txt"
    book.write_text(verses(0, 3000))
    with pytest.raises(TrainingError) as error:
        prepare_data(recipe_of(book).data, cache_dir=tmp_path / "c", context_length=1_000_000)
    assert f"split of {book} must hold" in str(error.value)


def test_a_folder_that_cannot_be_listed_is_an_error(corpus, tmp_path, monkeypatch):
    shutil.copytree(corpus, tmp_path / "source")
    (tmp_path / "source" / "closed").mkdir()
    listed = os.scandir

    def scandir(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(TrainingError, match=r"cannot read .*/closed: Permission denied"):
        find_corpus(tmp_path / "source")


def test_linked_folders_are_read_once_however_links_lead_round(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(name)
    (tmp_path / "here" / "link").symlink_to(tmp_path / "there")
    (tmp_path / "there" / "back").symlink_to(tmp_path / "here")
    assert find_corpus(tmp_path / "here").files == ("here.txt", "link/there.txt")


# --- said ---------------------------------------------------------------------------------------


@pytest.fixture
def patchy(tmp_path) -> Path:
    """Twelve modules, the thirteenth in Latin-1, one of them twice, one that nobody reads."""
    folder = write_corpus(tmp_path / "patchy")
    (folder / "old.py").write_text("größe = 1\n" * 40, "latin-1")
    shutil.copy(folder / "module_00.py", folder / "module_00_again.py")
    (folder / "notes.md").write_text("not read")
    (folder / "gone.txt").symlink_to(folder / "nowhere")
    return folder


def remarks_of(lines) -> list[str]:
    return [line for line in "\n".join(lines).splitlines() if line.startswith("data: ")]


def test_what_is_left_out_is_said_at_the_start_in_a_dry_run_and_in_the_report(
    patchy, recipe_of, tmp_path
):
    run = plan_one(recipe_of(patchy, vocabulary=3000), "SM", tmp_path / "runs")
    rehearsed = remarks_of([forecast([run], cache_dir=tmp_path / "cache")])[1:]
    assert not (tmp_path / "cache").exists()
    said = []
    train_runs([run], cache_dir=tmp_path / "cache", say=said.append)
    remarks = remarks_of(said)
    assert remarks == rehearsed and len(remarks) == 4
    for part in (
        "1 of 14 documents is left out: no UTF-8 text, ",
        "first old.py",
        "1 of 14 documents is left out: equal to another one",
        "2 files are not read, such as gone.txt",
        f"data.vocabulary=3000: {3000 - tokens_in(run):,} rows",
    ):
        assert any(part in remark for remark in remarks), part
    # A second run finds the corpus prepared, and says the same; so does a dry run.
    other = plan_one(recipe_of(patchy, vocabulary=3000), "SM+R", tmp_path / "runs")
    assert remarks_of([forecast([other], cache_dir=tmp_path / "cache")])[1:] == remarks
    notes = assemble(
        group_runs([read_run(run.folder.path)]), title="", command=None, seed_spread=None
    ).notes
    for remark in remarks:
        assert any(remark.removeprefix("data: ") in note for note in notes)


def tokens_in(run) -> int:
    return len(json.loads((run.folder.model / "tokenizer.json").read_text())["model"]["vocab"])


def test_validation_text_that_training_has_too_is_said(tmp_path, recipe_of):
    """Each module differs from another one in one short line."""
    folder = write_corpus(tmp_path / "copied", files=4)
    for path in list(folder.iterdir()):
        text = " ".join(path.read_text().split("\n")) + "\n"
        path.write_text(text)
        (folder / f"copy_{path.name}").write_text(f"# copy\n{text}")
    data = prepare_data(recipe_of(folder).data, cache_dir=tmp_path / "cache", context_length=32)
    assert data.record().copied_share == 1
    assert any("100% of the long validation lines" in remark for remark in data.remarks)


def test_nothing_is_said_where_nothing_is_left_out(corpus, recipe_of, cache_dir):
    data = prepare_data(
        recipe_of(corpus, vocabulary=300).data, cache_dir=cache_dir, context_length=32
    )
    assert data.remarks == []


def test_data_prepared_before_bytes_were_counted_still_says_what_it_knows(
    patchy, recipe_of, tmp_path
):
    section = recipe_of(patchy, vocabulary=300).data
    data = prepare_data(section, cache_dir=tmp_path / "cache", context_length=32)
    older = {k: v for k, v in as_dict(data.manifest).items() if k not in ("undecodable", "unread")}
    (data.folder / "manifest.json").write_text(json.dumps(older))
    remarks = open_prepared_data(data.folder, context_length=32).remarks
    assert len(remarks) == 2 and all("1 of 14 documents is left out" in line for line in remarks)


# --- a dry run reads as a run does --------------------------------------------------------------


def one_line(folder: Path) -> Path:
    (folder / "line.txt").write_text("word " * 40_000)
    return folder / "line.txt"


def short_file(folder: Path) -> Path:
    (folder / "short.txt").write_text(verses(0, 20))
    return folder / "short.txt"


def latin(folder: Path) -> Path:
    (folder / "latin.txt").write_text("größe\n" * 40_000, "latin-1")
    return folder / "latin.txt"


def other_fields(folder: Path) -> Path:
    rows = [json.dumps({"body": verses(n, 5)}) for n in range(50)]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    return folder / "rows.jsonl"


def short_validation(folder: Path) -> Path:
    rows = [json.dumps(verses(0, 500)), *(json.dumps(f"tiny {n}") for n in range(20))]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    return folder / "rows.jsonl"


def copies(folder: Path) -> Path:
    for number in range(5):
        (folder / f"{number}.txt").write_text(verses(0))
    return folder


def refusals(run, tmp_path) -> list[str]:
    """What a dry run and a run say of the same plan."""
    told = []
    for attempt in (
        lambda: forecast([run], cache_dir=tmp_path / "never"),
        lambda: train_runs([run], cache_dir=tmp_path / "cache", say=lambda line: None),
    ):
        with pytest.raises(TrainingError) as error:
            attempt()
        told.append(str(error.value))
    assert not (tmp_path / "never").exists()
    return told


@pytest.mark.parametrize(
    "write", [one_line, short_file, latin, other_fields, short_validation, copies]
)
def test_a_dry_run_refuses_the_files_that_a_run_refuses_in_its_words(write, tmp_path, recipe_of):
    recipe = recipe_of(write(tmp_path), validation_fraction=1e-9)
    told = refusals(plan_one(recipe, "SM", tmp_path / "runs"), tmp_path)
    assert told[0] == told[1]


def test_a_dry_run_compares_the_tokenizer_that_a_run_would_train(whole_runs, recipe_of, tmp_path):
    recipe = recipe_of(write_corpus(tmp_path / "other", files=9), vocabulary=320)
    run = plan_one(recipe, "SM+R", tmp_path / "runs", start_from=whole_runs("SM+R").path)
    told = refusals(run, tmp_path)
    assert told[0] == told[1] and "another tokenizer than the corpus" in told[0]


def test_a_dry_run_that_resumes_finds_that_the_corpus_changed(whole_runs, tiny_recipe, tmp_path):
    folder = stopped_at(whole_runs("SM+R"), 10, tmp_path / "sm-r-seed0")
    folder.update(corpus=changed(folder.info().corpus, sha256="0" * 64))
    told = refusals(plan_one(tiny_recipe, "SM+R", tmp_path), tmp_path)
    assert told[0] == told[1] and "trained on another corpus (sha256 differ)" in told[0]


def test_a_dry_run_finds_that_nothing_can_be_written(tiny_recipe, tmp_path):
    (tmp_path / "file").write_text("")
    told = refusals(plan_one(tiny_recipe, "SM", tmp_path / "file"), tmp_path)
    assert all(f"to {tmp_path / 'file'}/sm-seed0: Not a directory" in line for line in told)


def test_a_dry_run_warns_of_uniform_attention_as_a_run_does(tiny_recipe, tmp_path):
    said = []
    model = dataclasses.replace(tiny_recipe.model, initializer_range=0.002)
    training = dataclasses.replace(tiny_recipe.training, tokens=512)
    recipe = dataclasses.replace(tiny_recipe, model=model, training=training)
    run = plan_one(recipe, "SM", tmp_path)
    told = forecast([run], cache_dir=tmp_path / "never")
    train_runs([run], cache_dir=tmp_path / "cache", say=said.append)
    warning = next(line for line in said if "attention starts uniform" in line)
    assert warning in told
