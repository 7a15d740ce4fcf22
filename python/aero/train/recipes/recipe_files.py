"""Recipes from YAML: shipped ones, the user's file and `--set`, merged and checked.

Later beats earlier: shipped recipe, `--config`, `--set`. A key that does not exist is an error
that names the nearest one that does.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from aero.internals.errors import TrainingError
from aero.reading import UnreadableFileError, parse_yaml, read_yaml, shown
from aero.train.recipes.recipe import Recipe, RegularizationSection


def recipe_names() -> list[str]:
    """Returns the names of the shipped recipes.

    Example:
        >>> from aero.train.recipes.recipe_files import recipe_names
        >>> recipe_names()
        ['codeparrot', 'demo', 'languini']
    """
    folder = resources.files("aero.train.recipes")
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    )


def data_settings(data: str | None) -> list[str]:
    """Returns `--data` as a setting: a path as seen from anywhere, other names as they are."""
    if data is None:
        return []
    path = Path(data).expanduser()
    is_path = data != "stdlib" and path.exists()
    return [f"data.source={json.dumps(str(path.resolve()) if is_path else data)}"]


def load_recipe(
    name: str, *, config: str | Path | None = None, settings: Iterable[str] = ()
) -> Recipe:
    """Returns a shipped recipe with a user's changes.

    Args:
        name: one of `recipe_names()`.
        config: a YAML file with any part of a recipe.
        settings: `section.key=value`, the value in YAML.

    Returns:
        The merged, checked recipe.

    Raises:
        TrainingError: unknown name or key, unreadable file, or a value that does not fit.

    Example:
        >>> from aero.train import load_recipe
        >>> recipe = load_recipe("demo", settings=["optimizer.learning_rate=2e-3"])
        >>> recipe.optimizer.learning_rate
        0.002
    """
    if name not in recipe_names():
        raise TrainingError(
            f"train: recipe must be one of {', '.join(recipe_names())}, got {name!r}"
            f"{_suggestion(name, recipe_names())}"
        )
    if isinstance(settings, str):
        settings = [settings]
    shipped = resources.files("aero.train.recipes") / f"{name}.yaml"
    try:
        layers = [parse_yaml(shipped.read_bytes(), f"{name}.yaml")]
        if config is not None:
            layers.append(read_yaml(config, dict | None) or {})
        layers += [_setting_as_tree(setting) for setting in settings]
    except UnreadableFileError as error:
        raise TrainingError(f"train: {error}") from error
    sections: dict[str, Any] = {}
    for layer in layers:
        # per_label last, so that within one file it beats `regularization` wherever it stands.
        for key in sorted(layer, key=lambda key: key == "per_label"):
            _merge_section(sections, key, layer[key])
    return _recipe_from_sections(sections)


def recipe_to_dict(recipe: Recipe) -> dict[str, object]:
    """Returns the recipe as nested plain values, ready for YAML; `per_label` only if it is used."""
    values = dataclasses.asdict(recipe)
    values["per_label"] = {label: dict(part) for label, part in recipe.per_label.items()}
    if not values["per_label"]:
        del values["per_label"]
    return values


def _setting_as_tree(setting: str) -> dict[str, Any]:
    key, equals, text = setting.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals or not dot:
        raise TrainingError(f"train: --set must be section.key=value, got {setting!r}")
    value = parse_yaml(text, f"--set {setting}", object)
    return {section: {name: value}}


def _merge_section(sections: dict[str, Any], key: str, value: Any) -> None:
    """Puts one top-level entry of a file into those of the earlier files."""
    known = {entry.name: entry for entry in dataclasses.fields(Recipe)}
    if key not in known:
        raise TrainingError(f"train: unknown section {key!r}{_suggestion(key, _all_keys())}")
    if key == "name":
        sections[key] = str(value)
        return
    if not isinstance(value, Mapping):
        raise TrainingError(
            f"train: {key} must be a section of `key: value` lines, got {shown(value)}"
        )
    target = sections.setdefault(key, {})
    if key == "per_label":
        for label, changes in value.items():
            if not isinstance(changes, Mapping):
                raise TrainingError(
                    f"train: per_label.{label} must hold `key: value` lines, got {shown(changes)}"
                )
            checked = _coerced(RegularizationSection, f"per_label.{label}", changes)
            target.setdefault(str(label), {}).update(checked)
    else:
        changes = _coerced(typing.get_type_hints(Recipe)[key], key, value)
        target.update(changes)
        if key == "regularization":
            # A later file or --set that names a setting outright beats an earlier one that sets it
            # for a label.
            for settings in sections.get("per_label", {}).values():
                for name in changes:
                    settings.pop(name, None)


def _coerced(section: type, prefix: str, values: Mapping[Any, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(section)
    names = [entry.name for entry in dataclasses.fields(section)]
    result = {}
    for name, value in values.items():
        if name not in names:
            near = _suggestion(name, [f"{prefix}.{known}" for known in names])
            near = near or _suggestion(name, _all_keys())
            raise TrainingError(f"train: unknown setting '{prefix}.{name}'{near}")
        result[name] = _as_number(value, hints[name])
    return result


def _as_number(value: Any, hint: Any) -> Any:
    """YAML 1.1 reads `1e-3` as text and `1e6` is no int: both are meant as numbers here."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, str) and (float in kinds or int in kinds):
        try:
            value = float(value)
        except ValueError:
            return value
    if type(value) is int and float in kinds and int not in kinds:
        return float(value)
    if isinstance(value, float) and float not in kinds and int in kinds and value.is_integer():
        return int(value)
    return value


def _recipe_from_sections(sections: dict[str, Any]) -> Recipe:
    hints = typing.get_type_hints(Recipe)
    parts = {
        key: hints[key](**value) if dataclasses.is_dataclass(hints[key]) else value
        for key, value in sections.items()
    }
    return Recipe(**parts)


def _all_keys() -> list[str]:
    hints = typing.get_type_hints(Recipe)
    keys = []
    for section, hint in hints.items():
        keys.append(section)
        if dataclasses.is_dataclass(hint):
            keys += [f"{section}.{entry.name}" for entry in dataclasses.fields(hint)]
    return keys


def _suggestion(word: Any, known: Iterable[str]) -> str:
    """The nearest key by its last name: the section would make every key of it look alike."""
    keys = {key.rpartition(".")[2]: key for key in known}
    near = difflib.get_close_matches(str(word), keys, n=1, cutoff=0.6)
    return f"; did you mean '{keys[near[0]]}'?" if near else ""
