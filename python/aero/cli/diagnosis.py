"""`aero doctor`: finds what this installation can do, what is wrong with it, and what to do.

And the facts that `aero info` shows of the machine and `aero info RUN` of a run.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from aero.cli.errors import say

REINSTALL = "pip install --no-build-isolation --force-reinstall --no-deps ."
# In a process of its own: a library that does not fit its torch or its processor may end it.
_OPERATORS = """
import json, math, torch
from aero import _library
from aero._core import cpu_features
scores = torch.zeros(1, 1, 2, 2)
entropy = torch.ops.aero.temperature_softmax(scores, None, None, False)[1]
print(json.dumps({
    "torch": torch.__version__, "torch_cuda": torch.version.cuda or "",
    "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
    "target": ".".join(map(str, _library.TORCH_TARGET_VERSION)), "isa": _library.cpu_isa(),
    "features": cpu_features(), "obstacle": _library.cuda_obstacle(),
    "right": bool((entropy - math.log(2)).abs().max() < 1e-6),
}))
"""
_SPU = """
from importlib.metadata import version
from platform import python_version
print(f"Python {python_version()}, spu {version('spu')}, jax {version('jax')}")
"""
_SECONDS = 120  # a first import of torch from a cold disk


@dataclass(frozen=True)
class _Operators:
    """What that process prints; an empty text stands for none."""

    torch: str
    torch_cuda: str
    gpu: str
    target: str  # the oldest torch that the operators are built for
    isa: str
    features: list[str]
    obstacle: str
    right: bool


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis."""

    name: str  #: of the part that was looked at
    state: str  #: "ok"; "note": something optional is missing; "wrong": aero does not work fully
    found: str  #: in one line
    todo: str = ""  #: the remedy, "" where there is nothing to do


def findings() -> Iterator[Finding]:
    """Yields the findings part by part; needs no network and no torch."""
    yield _python()
    yield _native_code()
    yield from _torch_and_operators()
    yield _spu()
    yield from _build_tools()


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Says what works here, what does not, and what to do; exits with 1 if something is wrong."""
    found = []
    for finding in findings():
        found.append(finding)
        if not as_json:
            say(f"{finding.state:<6}{finding.name:<18}{finding.found}")
            if finding.todo:
                say(f"{'':<24}-> {finding.todo}")
    if as_json:
        say(json.dumps([asdict(finding) for finding in found], indent=2))
    if any(finding.state == "wrong" for finding in found):
        raise typer.Exit(1)


def _python() -> Finding:
    libc = " ".join(platform.libc_ver())
    system = f"{platform.system()} {platform.machine()}{', ' if libc else ''}{libc}"
    return Finding("python", "ok", f"{platform.python_version()}, {system}")


def _native_code() -> Finding:
    try:
        from aero._core import build_info
    except ImportError as error:
        return Finding("native code", "wrong", _last_line(str(error)), f"rebuild: {REINSTALL}")
    built = build_info()
    said = f"aero {built['version']}, compiled by {built['compiler']}, {built['build_type']}"
    state, todo = ("ok", "")
    if built["build_type"] != "Release":
        state, todo = "note", f"operators are slow in other builds than Release: {REINSTALL}"
    return Finding("native code", state, said, todo)


def _torch_and_operators() -> Iterator[Finding]:
    command = [sys.executable, "-c", _OPERATORS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        yield Finding("operators", "wrong", f"torch did not load in {_SECONDS} seconds")
        return
    if done.returncode:
        yield _operators_failed(done.returncode, _last_line(done.stderr))
        return
    facts = _Operators(**json.loads(done.stdout.splitlines()[-1]))
    built_for = f"the operators are built for {facts.target} and newer"
    yield Finding("torch", "ok", f"{facts.torch}; {built_for}")
    asked = os.environ.get("AERO_CPU_ISA")
    known = " ".join(facts.features) or "none that the kernels know"
    isa = Finding("instruction set", "ok", f"{facts.isa}; the processor has {known}")
    if not facts.right:
        said, todo = f"{facts.isa} computes wrong entropies", "report it with this output"
        isa = Finding("instruction set", "wrong", said, f"{todo}; AERO_CPU_ISA=scalar avoids it")
    elif asked:
        said, todo = f"{isa.found}; AERO_CPU_ISA={asked}", "unset AERO_CPU_ISA for the best one"
        isa = Finding("instruction set", "note", said, todo)
    yield isa
    yield _cuda(facts)


def _operators_failed(status: int, said: str) -> Finding:
    if status < 0:
        said = f"the process ended by {signal.Signals(-status).name} {said}".strip()
        return Finding("operators", "wrong", said, f"rebuild for this machine: {REINSTALL}")
    todo = "" if "rebuild with" in said else f"rebuild: {REINSTALL}"
    if "No module named 'torch'" in said:
        todo = "install PyTorch 2.11 or newer: pip install torch; costs (`aero cost`) work without"
    return Finding("operators", "wrong", said, todo)


def _cuda(facts: _Operators) -> Finding:
    has_driver = Path("/proc/driver/nvidia/version").exists()
    if not facts.torch_cuda:
        if has_driver:
            todo = "install a torch with CUDA to use the GPU, then rebuild aero"
            return Finding("CUDA", "note", "an NVIDIA driver, but torch has no CUDA", todo)
        return Finding("CUDA", "ok", "none: torch has no CUDA, and there is no NVIDIA driver")
    said = f"torch uses CUDA {facts.torch_cuda}"
    if not facts.gpu:
        return Finding("CUDA", "note" if has_driver else "ok", f"{said} and finds no GPU")
    if facts.obstacle:
        said = f"{said} on {facts.gpu}, but {facts.obstacle}"
        return Finding("CUDA", "wrong", said, f"with nvcc in PATH: {REINSTALL}")
    return Finding("CUDA", "ok", f"{said} on {facts.gpu}")


def _spu() -> Finding:
    from aero.private.environment import PrivateEnvironmentError, find_private_python

    needed = "only `aero private` needs it: make private"
    try:
        python = find_private_python()
        command = [str(python), "-I", "-c", _SPU]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (PrivateEnvironmentError, OSError, subprocess.TimeoutExpired) as error:
        named = os.environ.get("AERO_PRIVATE_PYTHON")
        return Finding("SPU", "note", _last_line(str(error)) if named else "not installed", needed)
    if done.returncode:
        return Finding("SPU", "note", f"{python}: {_last_line(done.stderr)}", needed)
    return Finding("SPU", "ok", f"{done.stdout.strip()} ({python})")


def _build_tools() -> Iterator[Finding]:
    tools: list[tuple[str, str, list[str], tuple[int, int]]] = [
        ("compiler", os.environ.get("CXX", "g++"), ["-dumpfullversion", "-dumpversion"], (12, 0)),
        ("CMake", "cmake", ["--version"], (3, 25)),
        ("nvcc", "nvcc", ["--version"], (0, 0)),
    ]
    for name, program, options, oldest in tools:
        yield _tool(name, program, options, oldest)


def _tool(name: str, program: str, options: list[str], oldest: tuple[int, int]) -> Finding:
    least = ".".join(map(str, oldest))
    needed = "only builds from source need it"
    todo = f"{needed}: install {name} {least} or newer" if any(oldest) else ""
    path = shutil.which(program)
    if path is None:
        return Finding(name, "note" if todo else "ok", f"no {program}", todo)
    done = subprocess.run([path, *options], capture_output=True, text=True, timeout=_SECONDS)
    version = re.search(r"\d+\.\d+(\.\d+)?", done.stdout)
    if version is None:
        return Finding(name, "note", f"{path} does not say its version", todo)
    fits = tuple(map(int, version[0].split(".")[:2])) >= oldest
    return Finding(name, "ok" if fits else "note", f"{version[0]} ({path})", "" if fits else todo)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"


def machine_facts() -> dict[str, str]:
    """Returns how aero was built, and its machine, by name."""
    import torch

    from aero._core import build_info, cpu_features
    from aero._library import TORCH_TARGET_VERSION, cpu_isa, library_path
    from aero.internals.machine import git_commit, hardware, package_versions

    build, versions = build_info(), package_versions()
    cuda = "no"
    if torch.cuda.is_available():
        cuda = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    facts = {
        "aero": versions["aero"],
        "commit": git_commit() or "not a git checkout",
        "python": versions["python"],
        "torch": torch.__version__,
        "TORCH_TARGET_VERSION": ".".join(map(str, TORCH_TARGET_VERSION)),
        "operator library": str(library_path()),
        "compiler": f"{build['compiler']}, {build['build_type']}",
        "cpu": hardware(),
        "cpu isa": cpu_isa(),
        "cpu features": " ".join(cpu_features()),
        "cuda": cuda,
        "cuda backward": os.environ.get("AERO_CUDA_BACKWARD") or "heads or split, by size",
    }
    return facts | {name: value for name, value in versions.items() if name not in facts}


def run_facts(path: Path) -> dict[str, str]:
    """Returns a run's kind, progress and start, by name.

    Raises:
        ValueError: it is no run folder, or its files cannot be read.
    """
    from aero.report import read_run

    run = read_run(path)
    info, corpus = run.info, run.info.corpus
    text = " ".join(filter(None, (corpus.name, corpus.version))) if corpus else ""
    measured = run.evaluation.perplexity if run.evaluation else None
    return {
        "network": run.spec.label,
        "seed": str(info.seed),
        "status": run.ending or "finished",
        "steps": f"{info.steps_done} of {info.steps_total}",
        "perplexity": "not evaluated" if measured is None else f"{measured:.3f}",
        "corpus": text or "unknown",
        "commit": info.git_commit or "not a git checkout",
        "hardware": info.hardware or "unknown",
        "first scores": _by_layer(info.first_score_deviations),
    }


def _by_layer(deviations: list[float | None] | None) -> str:
    if deviations is None:  # of runs from before it was measured
        return "not measured"
    shown = ("NaN" if value is None else f"{value:.3f}" for value in deviations)
    return f"deviation by layer {' '.join(shown)}"
