"""Every public name, grouped by the task that it is for, and the classes that they return."""

from __future__ import annotations

import functools
import inspect
import typing
from types import ModuleType
from typing import Any

import aero

# The public packages in the order of a user's way, each with its task.
TASKS = {
    "architecture": "Describe a network",
    "models": "Build and measure networks",
    "nn": "Modules for your own network",
    "ops": "Operators for your own modules",
    "conversion": "Convert a network",
    "train": "Train",
    "analysis": "Look at entropies",
    "mpc": "Price private inference",
    "fixed_point": "Compute as SPU does",
    "export": "Write networks for others",
    "private": "Run privately",
    "report": "Show costs and runs",
}


def python_reference() -> str:
    """The page: a section per task, a heading per name."""
    parts = []
    for package, task in TASKS.items():
        module = getattr(aero, package)
        parts.append(f"## {task}: `aero.{package}` {{#aero.{package}}}\n\n{_introduction(module)}")
        names = [*module.__all__, *returned_classes(module)]
        parts += [_entry(module, name) for name in sorted(names, key=str.lower)]
    return "\n\n".join(parts)


def _introduction(module: ModuleType) -> str:
    return (inspect.getdoc(module) or "").split("\nExample:")[0].strip()


def _entry(module: ModuleType, name: str) -> str:
    held = vars(module).get(name) or getattr(module, name, None) or returned_classes(module)[name]
    home = getattr(held, "__module__", module.__name__)
    path = f"{home}.{name}" if inspect.isclass(held) or inspect.isroutine(held) else None
    if path is None:
        path = f"{module.__name__}.{name}"
    public = f"{module.__name__}.{name}"
    options = f'options:\n        heading: "{public}"\n        toc_label: "{name}"'
    return f"::: {path}\n    {options}"


@functools.cache
def returned_classes(module: ModuleType) -> dict[str, type]:
    """Classes of a package that what it exports returns or holds, but that it does not export."""
    found: dict[str, type] = {}
    left = [getattr(module, name) for name in module.__all__]
    while left:
        here = left.pop()
        members = [here, *vars(here).values()] if inspect.isclass(here) else [here]
        hints = [hint for member in members for hint in _hints_of(member)]
        while hints:
            hint = hints.pop()
            hints += typing.get_args(hint)
            home = getattr(hint, "__module__", "") if inspect.isclass(hint) else ""
            name = getattr(hint, "__name__", "")
            is_here = home.startswith(f"{module.__name__}.") or home == "aero._core"
            if is_here and not name.startswith("_") and name not in {*exported_names(), *found}:
                found[name] = hint
                left.append(hint)
    return found


@functools.cache
def exported_names() -> frozenset[str]:
    """What any public package exports."""
    return frozenset(name for package in TASKS for name in getattr(aero, package).__all__)


def _hints_of(member: Any) -> list[Any]:
    """What a function or property returns, or a class holds."""
    if isinstance(member, property | functools.cached_property):
        member = member.fget if isinstance(member, property) else member.func
    try:
        hints = typing.get_type_hints(member)
    except Exception:  # no class or function, or names that its module does not have
        return []
    if inspect.isclass(member):
        return [hint for name, hint in hints.items() if not name.startswith("_")]
    return [hints.get("return")]
