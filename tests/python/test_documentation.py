"""The API reference builds without a warning; pages and pictures link to what exists."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import aero
import aero.reproduction

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
TARGET = re.compile(r"`aero reproduce ((?!costs)\w+)`")


def markdown_of(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def test_the_api_reference_builds_without_a_warning_and_has_every_public_name(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "build.py", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for package in (name for name in aero.__all__ if inspect.ismodule(getattr(aero, name))):
        page = (tmp_path / "aero" / f"{package}.html").read_text(encoding="utf-8")
        sections = set(re.findall(r'<section id="(\w+)"', page))
        assert set(getattr(aero, package).__all__) <= sections, package


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda path: path.name)
def test_links_lead_to_files_of_the_repository(page: Path) -> None:
    for link in LINK.findall(markdown_of(page)):
        if "://" not in link:
            target = (page.parent / link).resolve()
            assert target.exists() and target.is_relative_to(ROOT), f"{page.name}: {link}"


def test_every_gallery_picture_is_shown_with_the_command_that_makes_it() -> None:
    sections = (DOCS / "gallery.md").read_text(encoding="utf-8").split("\n### ")[1:]
    shown = set()
    for section in sections:
        (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", section)
        shown.add((DOCS / picture).resolve())
        assert re.search(r"`(make|aero|python) [^`]+`", section), section
    assert {*(DOCS / "images").glob("*.png")} <= shown


def test_gallery_pictures_are_small() -> None:
    pictures = [*(DOCS / "images").glob("*.png")]
    assert pictures
    assert max(path.stat().st_size for path in pictures) < 80_000


def test_the_readme_leads_to_gallery_and_papers() -> None:
    links = LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {"docs/gallery.md", "docs/paper.md"} <= {*links}


def test_every_target_of_reproduction_stands_beside_its_place_in_the_paper() -> None:
    rows = {}
    for line in (DOCS / "paper.md").read_text(encoding="utf-8").splitlines():
        for target in TARGET.findall(line) if line.startswith("|") else ():
            rows.setdefault(target, []).append(line.split("|")[1])
    assert rows.keys() == {*aero.reproduction.target_names()}
    for name, places in rows.items():
        place = aero.reproduction.load_target(name).paper  # such as "Figure 12"
        kind, number = place.split()[0], place.split()[-1]
        assert any(kind.lower() in row.lower() and number in row for row in places), place


def test_every_command_named_in_the_pages_exists() -> None:
    text = "\n".join(markdown_of(page) for page in [*PAGES, *NOTEBOOKS])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^([a-z]+):", makefile, re.MULTILINE)}
    assert {*re.findall(r"`make ([a-z]+)", text)} <= targets
    known = {*aero.reproduction.target_names(), "list", "all", "judge", "costs"}
    assert {*re.findall(r"`aero reproduce ([a-z]\w*)", text)} <= known
