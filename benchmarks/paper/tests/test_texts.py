"""The texts of `crossover`: what is taken of packages and sources, and manual pages as prose."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

from benchmarks.paper.experiments import texts


def archive(files: dict[str, bytes], mode: str) -> io.BytesIO:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as made:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    content.seek(0)
    return content


def test_a_manual_page_is_its_text_alone() -> None:
    page = r""".\" a comment
.TH CP 1
.SH NAME
cp \- copy "files"
.BR cp (1)
.B one "two words"
.nf
It\(aqs \fBbold\fP, a back\e slash and\ a space.
"""
    assert texts.plain(page).splitlines() == [
        "NAME",
        'cp - copy "files"',
        "cp(1)",
        "one two words",
        "It's bold, a back\\ slash and a space.",
    ]


def test_packages_give_their_python_without_tests_and_metadata(tmp_path: Path) -> None:
    for name in (
        "one/a.py",
        "one/tests/b.py",
        "one/in/c.py",
        "one/d.txt",
        "two-1-info/e.py",
        "f.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    found = [(part, name) for part, name, _ in texts.packages(tmp_path)]
    assert found == [("one", "a.py"), ("one", "in/c.py")]


def test_the_source_gives_its_c_or_its_documentation() -> None:
    names = ("fs/ext4/inode.c", "fs/ext4/ext4.h", "kernel/fork.c", "Documentation/mm/a.rst")
    names += ("Documentation/translations/b.rst",)
    made = {f"linux-source-6.1/{name}": name.encode() for name in names}
    found = {
        prose: [(p, n) for p, n, _ in texts.of_linux(archive(made, "w:xz"), prose=prose)]
        for prose in (False, True)
    }
    assert found[False] == [("fs-ext4", "fs/ext4/inode.c"), ("kernel", "kernel/fork.c")]
    assert found[True] == [("Documentation-mm", "Documentation/mm/a.rst")]


def test_manuals_are_the_english_pages_and_perls() -> None:
    made = {
        "./usr/share/man/man1/a.1.gz": gzip.compress(b".SH NAME\na\n"),
        "./usr/share/man/de/man1/a.1.gz": gzip.compress(b"nein"),
        "./usr/share/perl/perlfaq.pod": b"=head1 NAME",
    }
    assert list(texts.manuals("p", archive(made, "w"))) == [
        ("p", "a.1", "NAME\na"),
        ("p", "perlfaq.pod", "=head1 NAME"),
    ]


def test_no_part_gives_more_than_the_most_bytes(tmp_path: Path) -> None:
    documents = [("big", f"{n}/file", "x" * 40) for n in range(9)] + [("small", "a", "y" * 7)]
    assert texts.write(iter(documents), tmp_path, 100) == 87
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.txt"))
    assert len(files) == 3 and files[-1] == "small/a.txt"
    texts.write(reversed(documents), tmp_path / "again", 100)  # the same files in any order
    again = (tmp_path / "again").rglob("*.txt")
    assert sorted(p.relative_to(tmp_path / "again").as_posix() for p in again) == files
