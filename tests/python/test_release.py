"""The release workflow, which no machine here can run: what it says of this tree is true."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
METADATA = (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    return dict(yaml.safe_load(text)["jobs"])


def steps(job: dict[str, Any], action: str) -> list[dict[str, Any]]:
    """What the steps of an action are given."""
    return [s.get("with", {}) for s in job["steps"] if s.get("uses", "").startswith(action + "@")]


def test_every_artifact_is_published_signed_and_listed(jobs: dict[str, Any]) -> None:
    publish = jobs["publish"]
    before = {name: job for name, job in jobs.items() if name != "publish"}
    assert sorted(publish["needs"]) == sorted(before)
    made = [
        given["name"] for job in before.values() for given in steps(job, "actions/upload-artifact")
    ]
    taken = steps(publish, "actions/download-artifact")
    patterns = [
        word
        for given in taken
        for word in (given.get("pattern") or given["name"]).strip("{}").split(",")
    ]
    for name in made:
        name = name.replace("${{ matrix.os }}", "ubuntu-24.04")
        assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns), name
    folders = {given["path"] for given in taken}
    for action in ("actions/attest-build-provenance", "actions/attest-sbom"):
        (given,) = steps(publish, action)
        assert {part.split("/")[0] for part in given["subject-path"].split(",")} == folders
    assert publish["permissions"]["id-token"] == publish["permissions"]["attestations"] == "write"


def test_nothing_is_published_without_a_tag(jobs: dict[str, Any]) -> None:
    outward = [
        step
        for job in jobs.values()
        for step in job["steps"]
        if "pypi-publish" in step.get("uses", "") or "gh release" in step.get("run", "")
    ]
    assert len(outward) == 2
    assert {step["if"] for step in outward} == {"startsWith(github.ref, 'refs/tags/v')"}


def test_its_pythons_and_targets_are_those_of_this_tree(jobs: dict[str, Any]) -> None:
    supported = [f"3.{n}" for n in re.findall(r"Python :: 3\.(\d+)\"", METADATA)]
    job = jobs["cuda-wheels"]
    (setup,) = steps(job, "actions/setup-python")
    assert setup["python-version"].split() == supported
    (command,) = (s["run"] for s in job["steps"] if s.get("run", "").startswith("make "))
    assert re.findall(r"python(3\.\d+)(?=[ \"])", command.split("PYTHONS=")[1]) == supported
    assert re.search(rf"(?m)^{command.split()[1]}:", (ROOT / "Makefile").read_text("utf-8"))


def test_the_tests_of_the_wheels_exist() -> None:
    (command,) = re.findall(r'(?m)^test-command = "(.*)"$', METADATA)
    paths = re.findall(r"\{project\}/(\S+)", command)
    assert paths and all((ROOT / path).exists() for path in paths)


def test_the_version_heads_the_changelog_and_its_addresses_are_whole() -> None:
    version = re.search(r'^version = "(.+)"$', METADATA, re.MULTILINE)
    assert version is not None
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = next(line for line in changelog.splitlines() if line.startswith("## "))
    assert newest.split()[1] == version[1]
    addresses = METADATA.partition("[project.urls]\n")[2].partition("\n\n")[0].splitlines()
    assert addresses and all(re.fullmatch(r'\w+ = "https://\S+"', one) for one in addresses)
