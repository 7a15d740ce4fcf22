"""Python runs this at its start where the folder is on PYTHONPATH: for every process of a test.

`AERO_MUTANT` is `module|file|stands for`: the module's code is read from that file.
"""

import importlib.util
import os
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType


class MutantLoader(SourceFileLoader):
    """A module whose code comes from another file; all else is as in its own."""

    def __init__(self, name: str, mutant: str, original: str) -> None:
        super().__init__(name, original)
        self.mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(Path(self.mutant).read_bytes(), self.path)


class MutantFinder:
    """Comes before every other finder."""

    def __init__(self, name: str, mutant: str, original: str) -> None:
        self.name, self.mutant, self.original = name, mutant, original

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        if self.mutant.endswith(".so"):
            loader = ExtensionFileLoader(fullname, self.mutant)
            return importlib.util.spec_from_file_location(fullname, self.mutant, loader=loader)
        return importlib.util.spec_from_file_location(
            fullname, self.original, loader=MutantLoader(fullname, self.mutant, self.original)
        )


def install(mutant: str) -> None:
    sys.meta_path.insert(0, MutantFinder(*mutant.split("|")))


if "AERO_MUTANT" in os.environ:
    install(os.environ["AERO_MUTANT"])
