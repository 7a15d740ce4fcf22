"""What `mkdocs.yml` adds to the pages of docs: generated parts, pages of the repository, formulas.

A line `<!-- generated: NAME -->` of a page is replaced by `GENERATED[NAME]()`. Files of the
repository that pages link to (README, results, notebooks) become pages of the manual; links keep
working in both. Formulas become MathML, so that nothing is loaded from elsewhere.
"""

from __future__ import annotations

import functools
import html
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.append(str(Path(__file__).parent))

import answers
import charts
import counted
import held_by
import label_pictures
import paper_claims
import penalty_effects
import platforms
import python_reference
import tables
import typer
import typer.cli

import aero

ROOT = Path(__file__).parents[2]
# The manual has these pages too, at their own place.
REPOSITORY = [
    "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "kernels/README.md",
    "kernels/cuda/README.md", "tests/fuzz/README.md", "tests/mutants/README.md",
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("benchmarks/results/*"))),
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("notebooks/*.ipynb"))),
]  # fmt: skip
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
GENERATED_LINE = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def command_line() -> str:
    """Every command with its arguments and options."""
    from aero.cli import app

    text = typer.cli.get_docs_for_click(
        obj=typer.main.get_command(app), ctx=typer.Context(typer.main.get_command(app)), name="aero"
    )
    text = re.sub(r"^Example: (.+)$", r"Example: `\1`", text, flags=re.MULTILINE)
    return text.split("\n", 1)[1]


GENERATED: dict[str, Callable[[], str]] = {
    "recipe_settings": lambda: tables.by_section(tables.recipe_settings()),
    "stack_fields": lambda: tables.as_markdown(tables.stack_fields()),
    "spec_fields": lambda: tables.as_markdown(tables.spec_fields()),
    "primitives": tables.primitives,
    "private_settings": lambda: tables.as_markdown(tables.private_settings()),
    "private_protocols": counted.private_protocols,
    "label_words": label_pictures.words_with_pictures,
    "command_line": command_line,
    "paper_claims": paper_claims.paper_claims,
    "penalty_effects": penalty_effects.penalty_effects,
    "platforms": platforms.platforms,
    "python": python_reference.python_reference,
    "saving": counted.saving,
    "five_networks": counted.five_networks,
    "paper_bytes": counted.paper_bytes,
    "prices_of_norms": counted.prices_of_norms,
    "norms_side_by_side": lambda: counted.side_by_side("norms", "FN"),
    "removal_side_by_side": lambda: counted.side_by_side("layer_norm_removal", "removal"),
    "speed": counted.speed,
    "answers_front": lambda: answers.answers("answers_front", "../"),
    "answers_front_steps": lambda: answers.answers("answers_front_steps", "../"),
    "answers_shift": lambda: answers.answers("answers_shift", "../"),
    "answers_convolution": lambda: answers.answers("answers_convolution", "../"),
    "answers_convolution_long": lambda: answers.answers("answers_convolution_long", "../"),
    "answers_windows": lambda: answers.answers("answers_windows", "../"),
    "answers_start": lambda: answers.answers("answers_start", "../../"),
    "answers_retraining": lambda: answers.answers("answers_retraining", "../../"),
    "decided_penalties": answers.decided_penalties,
    **{
        f"chart_{place.rsplit('/', 1)[1]}": functools.partial(charts.shown, place)
        for place in charts.CHARTS
    },
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Names the version that is described."""
    config.site_name = f"aero {aero.__version__}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the README as first page, and the pages of the repository."""
    for path in ["README.md", *REPOSITORY]:
        text: str | bytes = (ROOT / path).read_bytes()
        if path.endswith((".md", ".ipynb")):
            text = bytes(text).decode("utf-8")
            text = notebook_page(text) if path.endswith(".ipynb") else text
            text = relinked(text, path)
        file = File.generated(config, uri_of(path), content=text)
        if path.endswith((".md", ".ipynb")) and path != "README.md":
            file.inclusion = type(file.inclusion).NOT_IN_NAV
        files.append(file)
    results = [path for path in REPOSITORY if re.fullmatch(r"benchmarks/results/[^/]+\.md", path)]
    items = "\n".join(f"- [{Path(path).stem}]({Path(path).name})" for path in results)
    listed = File.generated(
        config, "benchmarks/results/index.md", content=f"# Measurements\n\n{items}"
    )
    listed.inclusion = type(listed.inclusion).NOT_IN_NAV
    files.append(listed)
    for name, picture in label_pictures.pictures().items():
        files.append(File.generated(config, f"reference/labels/{name}.svg", content=picture))
    for place, chart in charts.pictures().items():
        files.append(File.generated(config, place, content=chart))
    forest = penalty_effects.forest_plot()
    files.append(File.generated(config, "explanation/entropy_penalty/forest.svg", content=forest))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fills in the generated parts, and leads links out of docs to where the manual has them."""
    markdown = GENERATED_LINE.sub(lambda found: GENERATED[found[1]](), markdown)
    if page.file.src_uri == "explanation/threat_model.md":
        markdown = held_by.folded(markdown)
    if page.file.generated_by is None:
        markdown = relinked(markdown, f"docs/{page.file.src_uri}")
    return markdown


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns formulas into MathML."""
    return re.sub(r'<(span|div) class="arithmatex">(.*?)</\1>', _formula, content, flags=re.DOTALL)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Puts our file_worker.js in the place of a script from elsewhere."""
    here = "../" * page.file.dest_uri.count("/")
    return output.replace("https://unpkg.com/iframe-worker/shim", f"{here}file_worker.js")


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    """Does so in the page of a wrong address."""
    return output.replace("https://unpkg.com/iframe-worker/shim", "/file_worker.js")


def _formula(found: re.Match[str]) -> str:
    display = "block" if found[1] == "div" else "inline"
    return convert(html.unescape(found[2]).strip()[2:-2], display=display)


def uri_of(path: str) -> str:
    """The place of a file of the repository in the manual."""
    if path == "README.md":
        return "index.md"
    return path.removeprefix("docs/").replace(".ipynb", ".md").replace("README.md", "index.md")


def relinked(text: str, path: str) -> str:
    """The text of a file with its links as they lead from its place in the manual."""
    here = os.path.dirname(uri_of(path))  # noqa: PTH120 (of an address)

    def lead(found: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(path), found[1]))  # noqa: PTH118, PTH120
        if (ROOT / target).is_dir():
            target = {"benchmarks/results": "benchmarks/results/index.md"}.get(target, target)
        return os.path.relpath(uri_of(target), here or ".")

    return LINK.sub(lead, text)


def notebook_page(text: str) -> str:
    """A notebook as Markdown, with its outputs."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(output) for output in cell.get("outputs", ())]
    return "\n\n".join(filter(None, parts))


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        encoded = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="" src="data:image/png;base64,{encoded}">'
    if "text/markdown" in data:
        return "".join(data["text/markdown"])
    shown = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{shown.rstrip()}\n```" if shown.strip() else ""
