"""A folder from which `transformers` loads an AERO network without this package.

The folder carries the very sources of the network, so there is no second implementation to keep
true: each module becomes one file whose name has its path in it (`aero.nn.linear` is
`aero_nn_linear.py`), as `transformers` copies flat files only, and imports are rewritten. Native
parts are replaced by the files of `aero.export.remote`.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

from torch import nn

import aero
from aero.architecture import ArchitectureSpec
from aero.internals.atomic_files import (
    require_no_run,
    write_bytes_atomically,
    write_json_atomically,
)
from aero.models.causal_lm import carry_over
from aero.reading import read_json

_ENTRY = "aero.export.remote.modeling_aero"
_REPLACED = {
    "aero.architecture": "aero.export.remote.architecture",
    "aero.ops": "aero.export.remote.operators",
}
_ENTRY_FILE = "modeling_aero"
_FIELDS = "    # The fields, which `export_remote_code` writes."
_AUTO_CLASSES = {
    "AutoConfig": "AeroConfig",
    "AutoModel": "AeroModel",
    "AutoModelForCausalLM": "AeroForCausalLM",
}


def export_remote_code(model: nn.Module, folder: str | Path) -> Path:
    """Writes a network with its code, for people who do not have this package.

    They load it with ``AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`` and
    can generate, evaluate and train; a warning says that the operators are the reference ones.
    Where this package is imported, the same folder loads as its own class with the fused operators.

    Args:
        model: an `AeroForCausalLM`, or a GPT-2, Pythia or nanoGPT network, see
            `aero.models.causal_lm.carry_over`.
        folder: made if missing; a tokenizer can be saved into it too.

    Returns:
        The folder.

    Raises:
        ValueError: a network of another kind.
        OSError: the folder cannot be written.

    Example:
        >>> from aero import export_remote_code
        >>> import tempfile
        >>> from aero.models import AeroConfig, AeroForCausalLM
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+ScFuFFN", model="tiny"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export_remote_code(model, folder)
        ...     (path / "modeling_aero.py").exists(), (path / "model.safetensors").exists()
        (True, True)
    """
    network = carry_over(model)
    folder = Path(folder)
    require_no_run(folder, "export")
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in _sources().items():
        write_bytes_atomically(folder / f"{name}.py", source.encode())
    network.save_pretrained(folder)
    settings = read_json(folder / "config.json", finite=False)
    settings["auto_map"] = {auto: f"{_ENTRY_FILE}.{own}" for auto, own in _AUTO_CLASSES.items()}
    write_json_atomically(folder / "config.json", settings)
    return folder


def _sources() -> dict[str, str]:
    """File names without suffix, and contents: the entry and all that it imports."""
    sources: dict[str, str] = {}
    missing, values = [_ENTRY], set()
    while missing:
        module = missing.pop()
        if _file_name(module) in sources:
            continue
        sources[_file_name(module)], imports = _rewritten(_source_of(module))
        missing += [imported for imported, _ in imports]
        values |= {imported for imported, is_value in imports if is_value}
    for module in values:
        # `from package import module` became `from .package_module import module`.
        name = module.rpartition(".")[2]
        sources[_file_name(module)] += f"\nimport sys\n\n{name} = sys.modules[__name__]\n"
    return sources


def _file_name(module: str) -> str:
    return _ENTRY_FILE if module == _ENTRY else module.replace(".", "_")


def _source_of(module: str) -> str:
    spec = importlib.util.find_spec(_REPLACED.get(module, module))
    assert spec is not None and spec.origin is not None, module
    source = Path(spec.origin).read_text(encoding="utf-8")
    return source.replace(_FIELDS, _fields()) if module == "aero.architecture" else source


def _fields() -> str:
    """The fields of a network's architecture, with defaults."""
    fields = ArchitectureSpec.from_label("SM+LN+G", model="mini").to_dict().items()
    return "\n".join(
        f"    {name}: {type(value).__name__} = "
        + (json.dumps(value) if isinstance(value, str) else repr(value))
        for name, value in fields
    )


def _rewritten(source: str) -> tuple[str, list[tuple[str, bool]]]:
    """The source with imports from files next to it; their modules, and those imported whole."""
    lines, imports = source.splitlines(), []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.module.partition(".")[0] != "aero":
            continue
        module, first = node.module, f"{node.module}.{node.names[0].name}"
        is_value = _is_module(first)
        assert not is_value or len(node.names) == 1, ast.unparse(node)
        imports.append((first if is_value else module, is_value))
        old, new = f"from {module} import", f"from .{_file_name(imports[-1][0])} import"
        lines[node.lineno - 1] = lines[node.lineno - 1].replace(old, new)
    header = f"# From aero-torch {aero.__version__}, Apache License 2.0; imports are rewritten."
    return "\n".join([header, *lines, ""]), imports


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the name before it is no package
        return False
