"""Which text of a corpus is trained on and which is held out, to the last unit."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from tests.python.refusals import assert_refused

from aero.internals.errors import TrainingError
from aero.train.data import corpora, corpus_files
from aero.train.data.corpora import CorpusScan, scan_corpus
from aero.train.data.corpus_files import CorpusSource, find_corpus

SHARED = "a line that other files have as well...."  # 40 characters
KILO = 1 << 10


def write(folder: Path, texts: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"{number:02}.txt").write_text(text)
    return folder


def held_out(scan: CorpusScan) -> list[str]:
    return [piece.text for piece in scan.pieces() if piece.validation]


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def ranked(kinds: str) -> list[str]:
    """Texts of one size, the smallest digest first; each s has a line that the others have too."""
    texts = []
    for place, kind in enumerate(kinds):
        for nonce in range(100_000):
            own = f"a line of its own, which ends in {nonce:07}"
            text = f"{SHARED if kind == 's' else own}\n{nonce:06}\n"
            if digest(text)[0] * len(kinds) // 256 == place:
                break
        texts.append(text)
    return texts


# Of twelve texts of one size a share of 1/6 is two; twice as many and one more are looked at.
@pytest.mark.parametrize(
    ("kinds", "share", "chosen"),
    [
        ("oooooooooooo", 1 / 6, [0, 1]),
        ("sooooooooooo", 1 / 6, [0, 1]),  # nobody shares its line
        ("ssoooooooooo", 1 / 6, [2, 3]),
        ("sssooooooooo", 1 / 6, [0, 3]),
        ("ssssoooooooo", 1 / 6, [0, 1]),
        ("osssoooooooo", 1 / 6, [0, 1]),
        ("oooo", 0.25, [0]),
        ("ssoo", 0.25, [0]),
        ("oo", 0.5, [0]),
    ],
)
def test_who_shares_lines_with_others_is_held_out_last(kinds, share, chosen, tmp_path):
    texts = ranked(kinds)
    assert len({len(text) for text in texts}) == 1
    source = find_corpus(write(tmp_path / "corpus", texts))
    scan = scan_corpus(source, share)
    assert sorted(held_out(scan)) == sorted(texts[index] for index in chosen)


def test_one_unit_is_left_to_train_on_however_much_is_asked_for(tmp_path):
    texts = ranked("oo")
    texts[1] += "more" * 100
    while digest(texts[1]) < digest(texts[0]):
        texts[1] += "."
    scan = scan_corpus(find_corpus(write(tmp_path, texts)), 0.5)
    assert held_out(scan) == texts[:1] and scan.train_bytes == len(texts[1])


@pytest.mark.parametrize(("copied", "chosen"), [(1, 0), (2, 1)])
def test_a_near_copy_shares_more_than_a_tenth(copied, chosen, tmp_path):
    """Of ten lines that are long enough to count; one of 39 characters is not."""
    for nonce in range(100_000):
        own = [f"{nonce:05} is the number of line {row}".ljust(40, ".") for row in range(10)]
        first = "\n".join([SHARED] * copied + own[copied:] + ["short".ljust(39, "."), ""])
        second = "\n".join([row[::-1] for row in own] + ["short".ljust(39, "."), ""])
        other = f"{SHARED}\n{nonce}\n"
        if digest(first) < digest(second) < digest(other):
            break
    scan = scan_corpus(find_corpus(write(tmp_path, [first, second, other])), 0.3)
    assert held_out(scan) == [(first, second)[chosen]]
    assert scan.copied_share == (0.1 if chosen == 0 else 0)


@pytest.fixture
def bars(monkeypatch):
    """What each bar is told."""
    bars = []

    class Bar:
        def __init__(self, *asked):
            bars.append([*asked])

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def update(self, size):
            bars[-1].append(size)

    monkeypatch.setattr(corpora, "progress_bar", Bar)
    return bars


def test_a_bar_counts_the_bytes_of_every_line_and_block(tmp_path, bars):
    lines = ['{"text": "one"}\n', '"zwölf"\n', "\n", '"three"']
    (tmp_path / "a.jsonl").write_text("".join(lines))
    scan_corpus(find_corpus(tmp_path / "a.jsonl"), 0.3)
    sizes = [len(line.encode()) for line in lines]
    assert bars.pop() == ["reading a", sum(sizes), "B", *sizes[:2], sizes[3]]
    (tmp_path / "b.txt").write_text("x" * 70_000 + "\n" + "y" * 5)
    scan_corpus(find_corpus(tmp_path / "b.txt"), 0.3)
    assert bars.pop() == ["reading b", 70_006, "B", 70_001, 5]


def test_a_scan_is_known_by_the_text_and_the_fate_of_every_unit(tmp_path, bars):
    contents = [b"one\n", b"\xff", b"two\n", b"", b"one\n", b"\xc3", b"three\n"]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.txt").write_bytes(content)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    source = find_corpus(tmp_path)
    assert source.files == tuple(f"{number}.txt" for number in range(7))
    scan = scan_corpus(source, 0.2)
    whole = [hashlib.sha256(content).digest() for content in contents]
    whole[1] = whole[5] = b"undecodable"
    order = sorted((0, 2, 6), key=lambda unit: whole[unit])
    fates = bytearray([0, 3, 0, 4, 2, 3, 0])
    fates[order[0]] = 1
    assert scan.fates == fates and not source.in_blocks
    assert scan.sha256 == hashlib.sha256(b"".join(whole) + fates).hexdigest()
    held = len(contents[order[0]])
    assert (scan.train_bytes, scan.validation_bytes) == (14 - held, held)
    sizes = [len(content) for content in contents]
    assert bars == [[f"reading {tmp_path.name}", sum(sizes), "B", *sizes]]
    listing = "".join(f"{number}.txt\0{size}\n" for number, size in enumerate(sizes))
    assert source.files_sha256 == hashlib.sha256(listing.encode()).hexdigest()
    os.utime(tmp_path / "0.txt", (1, 1))
    touched = find_corpus(tmp_path)
    assert touched.files_sha256 == source.files_sha256 and touched.change_key != source.change_key
    assert (source.name, source.version, source.root) == (tmp_path.name, "", tmp_path)


def test_a_single_file_is_cut_at_the_first_line_after_each_64_kilobytes(tmp_path):
    lines = [f"{number:09}\n" for number in range(40_000)]
    (tmp_path / "book.txt").write_text("".join(lines))
    scan = scan_corpus(find_corpus(tmp_path / "book.txt"), 0.2)
    assert scan.source.in_blocks and len(scan.fates) == 7
    # Blocks of 65,540 bytes; the last one has 6,760, and 80,000 are asked for.
    assert [len(piece.text) for piece in scan.pieces()] == [65_540] * 6 + [6_760]
    assert [piece.validation for piece in scan.pieces()] == [False] * 4 + [True] * 3
    assert (scan.train_bytes, scan.validation_bytes) == (4 * 65_540, 2 * 65_540 + 6_760)


def test_a_text_comes_in_pieces_of_a_megabyte_that_end_with_a_line(tmp_path):
    lines = [f"{number:099}\n" for number in range(25_000)]
    texts = ["".join(lines), "x" * 3000 * KILO + "\n" + "y" * 10, "small"]
    scan = scan_corpus(find_corpus(write(tmp_path, texts)), 1e-6)
    sizes = {unit: [] for unit in range(3)}
    for piece in scan.pieces():
        sizes[piece.unit].append(len(piece.text))
    whole = KILO * KILO // 100 * 100
    assert sizes[0][0] == whole and 0 < sizes[0][1] - whole <= 100 and len(sizes[0]) == 3
    # A line without an end stays whole.
    assert sizes[1] == [3000 * KILO + 1, 10] and sizes[2] == [5]


def test_lines_of_json_may_hold_what_is_none_of_ours(tmp_path):
    lines = [
        {"content": "no", "text": "yes", "score": float("nan"), "more": "x" * 200},
        {"text": 3, "content": "second choice"},
        {"text": None, "n": 1},
        ["text"],
    ]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "b.jsonl").write_text('  \n"third"\n')
    scan = scan_corpus(find_corpus(tmp_path), 0.1)
    assert sorted(piece.text for piece in scan.pieces()) == ["second choice", "third", "yes"]
    assert scan.count(corpora.UNDECODABLE) == 2 and len(scan.fates) == 5


def test_a_single_jsonl_file_is_not_cut_into_blocks(tmp_path):
    (tmp_path / "a.jsonl").write_text('"one"\n"two"\n"one"\n')
    scan = scan_corpus(find_corpus(tmp_path / "a.jsonl"), 0.5)
    assert not scan.source.in_blocks and scan.count(corpora.DUPLICATE) == 1


def test_equal_blocks_of_one_file_all_stay(tmp_path):
    (tmp_path / "a.txt").write_text(("x" * 63 + "\n") * 4096)
    scan = scan_corpus(find_corpus(tmp_path), 0.3)
    assert scan.source.in_blocks and scan.count(corpora.DUPLICATE) == 0
    assert scan.train_bytes + scan.validation_bytes == 4096 * 64


def test_folders_of_other_peoples_code_and_of_caches_are_left_out(tmp_path, monkeypatch):
    for name in ("a", "test", "tests", "idle_test", "site-packages", "dist-packages"):
        for place in (name, f"a/{name}", "a/__pycache__"):
            (tmp_path / place).mkdir(exist_ok=True, parents=True)
            (tmp_path / place / "x.py").write_text("x")
    (tmp_path / "a" / "y.txt").write_text("y")
    monkeypatch.setattr(corpus_files.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    assert find_corpus("stdlib").files == ("a/a/x.py", "a/x.py")
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    own = find_corpus(f"~/{tmp_path.name}")
    assert own.root == tmp_path and "tests/x.py" in own.files and "a/y.txt" in own.files
    assert not [name for name in own.files if "__pycache__" in name]


def test_the_root_of_a_machine_is_a_corpus_with_a_name(monkeypatch):
    monkeypatch.setattr(corpus_files, "_files_below", lambda *asked: (("x.txt",), ()))
    monkeypatch.setattr(corpus_files, "_listing_digests", lambda *asked: ("", ""))
    assert find_corpus("/") == CorpusSource("root", "", Path("/"), ("x.txt",), "", "")


def test_a_file_that_cannot_be_read_any_more_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("only")
    source = find_corpus(tmp_path)
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.txt").mkdir()
    named = (f"cannot read {tmp_path / 'a.txt'}", "Is a directory")
    assert_refused(lambda: scan_corpus(source, 0.1), *named, error=TrainingError)
