import json
import platform
from pathlib import Path

import pytest
from tests.python.refusals import assert_refused

from aero.internals.errors import TrainingError
from aero.train.data.corpora import (
    DUPLICATE,
    TRAIN,
    UNDECODABLE,
    VALIDATION,
    scan_corpus,
)
from aero.train.data.corpus_files import find_corpus
from aero.train.data.hub import download_dataset


def write(folder: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def text_of(scan, *, validation: bool) -> str:
    return "".join(piece.text for piece in scan.pieces() if piece.validation == validation)


def test_the_standard_library_is_there_without_packages_and_caches():
    source = find_corpus("stdlib")
    assert source.version == f"{platform.python_implementation()} {platform.python_version()}"
    assert "json/decoder.py" in source.files
    assert all(name.endswith(".py") for name in source.files)
    parts = {part for name in source.files for part in Path(name).parts}
    assert not parts & {"site-packages", "dist-packages", "__pycache__", "test"}
    assert source.files == tuple(sorted(source.files))
    again = find_corpus("stdlib")
    assert again.files_sha256 == source.files_sha256 and again.change_key == source.change_key


def test_the_split_depends_on_content_and_not_on_names(tmp_path):
    contents = [f"text number {number}\n" for number in range(20)]
    for folder, names in (("x", range(20)), ("y", reversed(range(20)))):
        (tmp_path / folder).mkdir()
        for name, content in zip(names, contents, strict=True):
            (tmp_path / folder / f"{name:02}.txt").write_text(content)
    held_out = [
        sorted(text_of(scan_corpus(find_corpus(tmp_path / name), 0.2), validation=True).split("\n"))
        for name in "xy"
    ]
    assert held_out[0] == held_out[1]


def test_the_held_out_share_is_about_what_was_asked(corpus):
    scan = scan_corpus(find_corpus(corpus), 0.25)
    share = scan.validation_bytes / (scan.train_bytes + scan.validation_bytes)
    assert 0.25 <= share < 0.25 + 1 / 12 + 0.02


def test_near_copies_are_held_out_last(tmp_path):
    rows = [f"row {row} of a table whose rows are long enough to count" for row in range(20)]
    for number in range(12):  # one word differs
        (tmp_path / f"table{number}.py").write_text("\n".join([f"name = {number}", *rows]))
    for number in range(12):
        own = [f"line {row} of text {number}, which stands in no other file" for row in range(20)]
        (tmp_path / f"text{number}.py").write_text("\n".join(own))
    scan = scan_corpus(find_corpus(tmp_path), 0.3)
    held_out = text_of(scan, validation=True)
    assert "of text" in held_out and "of a table" not in held_out
    assert scan.copied_share == 0
    assert "of a table" in text_of(scan, validation=False)
    assert scan.sha256 != scan_corpus(find_corpus(tmp_path), 0.1).sha256  # the split counts


def test_the_share_that_stands_elsewhere_too_is_told(tmp_path):
    shared = "a licence in every file".ljust(48, ".")
    for number in range(10):
        own = f"a line of file {number} alone".ljust(48, ".")
        (tmp_path / f"{number}.py").write_text(f"{shared}\n    {own}\nshort\n")
    assert scan_corpus(find_corpus(tmp_path), 0.2).copied_share == 0.5


def test_lines_of_json_are_units_of_their_own(tmp_path):
    lines = [json.dumps({"text": f"t{i} é"}) for i in range(9)]
    lines += [json.dumps({"content": "c"}), json.dumps("plain"), lines[0], "{", '{"n": 1}', ""]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    scan = scan_corpus(find_corpus(tmp_path / "data.jsonl"), 0.2)
    assert scan.count(TRAIN) + scan.count(VALIDATION) == 11
    assert scan.count(DUPLICATE) == 1 and scan.count(UNDECODABLE) == 2


def test_a_lone_surrogate_in_json_is_undecodable(tmp_path):
    (tmp_path / "data.jsonl").write_text(
        f'{{"text": "{"a" * 99}"}}\n{{"text": "b"}}\n{{"text": "\\ud800"}}\n"\\udfff"\n'
    )
    scan = scan_corpus(find_corpus(tmp_path / "data.jsonl"), 0.2)
    assert scan.count(UNDECODABLE) == 2


def test_large_files_come_in_pieces_that_join_to_the_whole(tmp_path):
    large = "".join(f"größe {number} ☃\n" for number in range(150_000))
    write(tmp_path, a__txt=large, b__txt="small\n", c__txt="other\n")
    scan = scan_corpus(find_corpus(tmp_path), 0.0001)
    pieces = [piece for piece in scan.pieces() if piece.unit == 0]
    assert len(pieces) > 1
    assert "".join(piece.text for piece in pieces) == large
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_reading_may_start_at_any_unit(corpus):
    scan = scan_corpus(find_corpus(corpus), 0.2)
    everything = [piece.unit for piece in scan.pieces()]
    assert [piece.unit for piece in scan.pieces(first_unit=5)] == [u for u in everything if u >= 5]


@pytest.mark.parametrize(
    ("files", "name", "named"),
    [
        ({}, "", ("no .txt, .py, .jsonl file", "folder")),
        ({"a__md": "x"}, "a.md", ("a folder or a file ending in .txt, .py, .jsonl",)),
        ({}, "missing", ("data", "'stdlib', a folder or a file", "missing")),
        (
            {"a__py": "one", "b__py": "one", "c__py": b"\xff"}, "",
            ("two different documents", "got 1", "1 could not"),
        ),
    ],
)  # fmt: skip
def test_a_corpus_that_is_none_is_refused(files, name, named, tmp_path):
    write(tmp_path, **files)
    corpus = lambda: scan_corpus(find_corpus(tmp_path / name), 0.1)  # noqa: E731
    assert_refused(corpus, *named, error=TrainingError)


def test_a_hub_name_without_the_hub_library_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    named = ("'owner/name'", "pip install datasets")
    assert_refused(lambda: download_dataset("owner/name", tmp_path), *named, error=TrainingError)


def test_a_single_folder_cannot_be_split(tmp_path):
    write(tmp_path, a__py="one\n", b__py="two\n")
    scan_corpus(find_corpus(tmp_path), 0.3, "folder")  # files beside folders are their own
    inside = tmp_path / "only" / "one"
    inside.mkdir(parents=True)
    write(inside, a__py="one\n", b__py="two\n")
    with pytest.raises(TrainingError, match="at least two different folders"):
        scan_corpus(find_corpus(tmp_path / "only"), 0.3, "folder")


class _Rows(list):
    column_names = ("content", "license")


def test_a_hub_dataset_becomes_a_local_file_once(tmp_path, monkeypatch):
    calls = []

    class Datasets:
        @staticmethod
        def load_dataset(name, split):
            calls.append((name, split))
            return _Rows([{"content": "a\nb"}, {"content": "c"}])

    monkeypatch.setitem(__import__("sys").modules, "datasets", Datasets)
    path = download_dataset("owner/name", tmp_path)
    assert [json.loads(line)["text"] for line in path.read_text().splitlines()] == ["a\nb", "c"]
    assert download_dataset("owner/name", tmp_path) == path
    assert calls == [("owner/name", "train")]


def test_an_unreachable_hub_is_an_error_that_gives_the_reason(tmp_path, monkeypatch):
    class Datasets:
        @staticmethod
        def load_dataset(name, split):
            raise ConnectionError("no route to host\nlong trace")

    monkeypatch.setitem(__import__("sys").modules, "datasets", Datasets)
    with pytest.raises(
        TrainingError, match=r"the hub gave no dataset of that name: no route to host$"
    ):
        download_dataset("owner/name", tmp_path)
    assert not list(tmp_path.iterdir())


def packages(folder: Path) -> Path:
    """Ten packages of three files each; the files of one share a long line."""
    for number in range(10):
        package = folder / f"package{number}"
        package.mkdir()
        line = f"a line of package {number} that is long enough to be compared\n"
        write(package, **{f"{name}__py": f"{line}{name}{number}\n" * 3 for name in "abc"})
    return folder


def test_folders_are_held_out_whole(tmp_path):
    scan = scan_corpus(find_corpus(packages(tmp_path)), 0.15, "folder")
    fates = dict(zip(scan.source.files, scan.fates, strict=True))
    by_folder = {}
    for name, fate in fates.items():
        by_folder.setdefault(name.partition("/")[0], set()).add(fate)
    assert all(len(found) == 1 for found in by_folder.values())
    assert sum(found == {VALIDATION} for found in by_folder.values()) == 2
    # Other files of the same package do not make its lines copies.
    assert scan.copied_share == 0.0
    assert scan_corpus(scan.source, 0.15).copied_share > 0.5
    total = scan.train_bytes + scan.validation_bytes
    assert total == sum(len((tmp_path / name).read_bytes()) for name in fates)


def test_the_folders_held_out_depend_on_their_names_alone(tmp_path):
    packages(tmp_path)
    before = scan_corpus(find_corpus(tmp_path), 0.15, "folder")
    for file in tmp_path.rglob("*.py"):
        file.write_text(file.read_text().replace("a line", "another line"))
    after = scan_corpus(find_corpus(tmp_path), 0.15, "folder")
    assert before.fates == after.fates and before.sha256 != after.sha256


def test_a_folder_that_copies_another_one_comes_last(tmp_path):
    packages(tmp_path)
    scan = scan_corpus(find_corpus(tmp_path), 0.1, "folder")
    first = next(n for n, fate in zip(scan.source.files, scan.fates, strict=True) if fate)
    held_out = first.partition("/")[0]
    copy = tmp_path / "vendored"
    copy.mkdir()
    for file in (tmp_path / held_out).iterdir():
        (copy / file.name).write_text(file.read_text() + "one line more\n")
    again = scan_corpus(find_corpus(tmp_path), 0.1, "folder")
    fates = dict(zip(again.source.files, again.fates, strict=True))
    assert fates[first] == TRAIN and again.count(VALIDATION) > 0
