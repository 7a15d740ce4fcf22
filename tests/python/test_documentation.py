"""The manual builds without a warning; pages and pictures link to what exists."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import aero
from aero import _core
from aero.private import environment
from benchmarks.paper.targets import load_target, target_names

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
TARGET = re.compile(r"`python -m benchmarks\.paper ((?!costs)\w+)`")


def markdown_of(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@pytest.fixture(name="site", scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manual; every warning, such as of a broken link or reference, is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_manual_has_every_public_name(site: Path) -> None:
    page = (site / "reference" / "python.html").read_text(encoding="utf-8")
    anchors = set(re.findall(r'id="(aero\.[\w.]+)"', page))
    for package in (getattr(aero, name) for name in aero.__all__):
        for name in package.__all__ if inspect.ismodule(package) else ():
            held = getattr(package, name)
            home = getattr(held, "__module__", package.__name__)
            assert {f"{home}.{name}", f"{package.__name__}.{name}"} & anchors, (package, name)
    assert {"aero._core.Cost", "aero._core.Operation"} <= anchors
    assert '<span class="gp">&gt;&gt;&gt; </span>' in page  # examples are code


def test_the_manual_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]+src=\"(https?:[^\"]+)", text)
        loaded += re.findall(r"<link[^>]+href=\"(https?:[^\"]+)", text)
        assert not loaded, (page, loaded)
        assert "fonts.googleapis" not in text and "cdn." not in text, page


def test_the_generated_parts_are_in_the_manual(site: Path) -> None:
    recipe = (site / "reference" / "recipe.html").read_text(encoding="utf-8")
    assert "optimizer.learning_rate" in recipe and "regularization.tolerance_margin" in recipe
    assert "aero cost show" in (site / "reference" / "command_line.html").read_text("utf-8")
    assert len([*(site / "reference" / "labels").glob("*.svg")]) == len(_core.label_words())
    assert "holds with embeddings of variance 1" in (site / "paper.html").read_text("utf-8")
    assert (site / "llms.txt").read_text("utf-8").startswith("# aero\n")
    for page in site.rglob("*.html"):
        assert "<!-- generated:" not in page.read_text(encoding="utf-8"), page
    formulas = (site / "explanation" / "start.html").read_text(encoding="utf-8")
    assert "<math" in formulas and "arithmatex" not in formulas


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[nowhere](nowhere.md)")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    kept = re.sub(
        r"^(nav|hooks|plugins|extra_css):.*?(?=^\w)", "", settings + "\nend: 1", flags=re.M | re.S
    )
    (tmp_path / "mkdocs.yml").write_text(kept.replace("\nend: 1", ""))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0 and "nowhere.md" in done.stderr + done.stdout


def test_every_environment_variable_is_in_the_manual() -> None:
    page = (DOCS / "reference" / "environment.md").read_text(encoding="utf-8")
    read = set()
    for path in [
        *ROOT.glob("python/aero/**/*.py"),
        *ROOT.glob("csrc/**/*.cpp"),
        *ROOT.glob("kernels/**/*.c*"),
    ]:
        text = path.read_text(encoding="utf-8")
        read |= {*re.findall(r"getenv\(\"(\w+)\"", text)}
        read |= {*re.findall(r"\"(\w+)\" not in os.environ", text)}
        read |= {*re.findall(r"environ(?:\.get\(|\.setdefault\(|\[)\"(\w+)\"", text)}
    read |= {environment.VARIABLE}
    assert read and read == {*re.findall(r"^\| `(\w+)`", page, re.MULTILINE)} - {
        "AERO_CUDA",
        "AERO_WHEELS",
    }


def test_pages_and_metadata_name_the_same_pythons() -> None:
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    minors = [int(n) for n in re.findall(r"Python :: 3\.(\d+)\"", metadata)]
    assert minors == [*range(minors[0], minors[-1] + 1)]
    assert f'requires-python = ">=3.{minors[0]}"' in metadata
    assert {*minors} <= {*map(int, re.findall(r'"cp3(\d+)-\*"', metadata))}
    for page in ("README.md", "docs/quickstart.md", "docs/reference/platforms.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        said = re.findall("Python 3\\.(\\d+)\N{EN DASH}3\\.(\\d+)", text)
        assert said == [(str(minors[0]), str(minors[-1]))], page


def test_the_table_of_platforms_shows_every_result_and_invents_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(DOCS / "tools")
    import platforms

    row = {"platform": "Linux x86_64", "python": "3.11", "torch": "2.13.0", "passed": 7,
           "failed": 0, "how": "native"}  # fmt: skip
    others = [
        row | {"torch": None, "passed": 5, "failed": 2},
        row | {"platform": "Linux aarch64", "how": "emulated by QEMU"},
        row | {"platform": "Darwin arm64", "passed": 0, "how": "built"},
    ]
    monkeypatch.setattr(platforms, "results", lambda: [row, *others])
    cells = re.findall(r"(?<=\| )([^|\n]*[a-z][^|\n]*?)(?= \|)", platforms.platforms())
    kept = [cell for cell in cells if not cell.startswith(("torch", "without", "Python"))]
    # Of each platform but that with CUDA kernels one Python was tried.
    assert len(kept) == 3 * 6
    assert sorted(cell for cell in kept if cell != "not tried") == [
        "2 of 7 tests fail", "built", "tested: 7 tests", "tested: 7 tests, emulated by QEMU",
    ]  # fmt: skip
    monkeypatch.setattr(platforms, "results", lambda: [row | {"python": "2.7"}])
    with pytest.raises(ValueError, match="no table has a place for"):
        platforms.platforms()


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


def test_every_target_of_the_study_stands_beside_its_place_in_the_paper() -> None:
    rows = {}
    for line in (DOCS / "paper.md").read_text(encoding="utf-8").splitlines():
        for target in TARGET.findall(line) if line.startswith("|") else ():
            rows.setdefault(target, []).append(line.split("|")[1])
    assert rows.keys() == {*target_names()}
    for name, places in rows.items():
        place = load_target(name).paper  # such as "Figure 12"
        kind, number = place.split()[0], place.split()[-1]
        assert any(kind.lower() in row.lower() and number in row for row in places), place


def test_every_command_named_in_the_pages_exists() -> None:
    text = "\n".join(markdown_of(page) for page in [*PAGES, *NOTEBOOKS])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)}
    assert {*re.findall(r"`make ([a-z-]+)", text)} <= targets
    known = {*target_names(), "list", "all", "judge", "costs"}
    assert {*re.findall(r"`python -m benchmarks\.paper ([a-z]\w*)", text)} <= known


#: A docstring that begins so needs the name before it to be a sentence.
FRAGMENT = re.compile(r"(?:Of|Whether|With|Without|As|For|From|In|By|To|At|Where|That|Which|And)\b")


@pytest.mark.parametrize("room", ["python/aero", "benchmarks", "docs/tools", "packaging"])
def test_docstrings_begin_with_a_noun_or_a_verb(room: str) -> None:
    found = []
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if FRAGMENT.match(text):
                    found.append(f"{path.relative_to(ROOT)}: {text.splitlines()[0]}")
    assert found == []
