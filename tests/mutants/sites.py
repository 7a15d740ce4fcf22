"""The mutants of a file, and a random sample of a room's, drawn before anything has run."""

from __future__ import annotations

import difflib
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from tests.mutants.meaning import meaning
from tests.mutants.operators import operators

ROOT = Path(__file__).parents[2]
OPERATORS = operators()


@dataclass(frozen=True, order=True)
class Mutant:
    """One change: the nth occurrence of what an operator can change in a file."""

    path: str
    position: tuple[int, int]
    operator: str
    occurrence: int

    def source(self) -> str:
        """The file's text with the change."""
        text = (ROOT / self.path).read_text()
        mutated = mutate_code(text, OPERATORS[self.operator], self.occurrence)
        assert mutated is not None, self
        return mutated

    def changed_lines(self) -> tuple[str, str]:
        """What stood there, and what stands there now, without indentation."""
        old, new = (ROOT / self.path).read_text().splitlines(), self.source().splitlines()
        lines = list(difflib.unified_diff(old, new, n=0, lineterm=""))[3:]
        before, after = ([x[1:].strip() for x in lines if x[0] == sign] for sign in "-+")
        return " ".join(before), " ".join(after)


def mutants_of(path: str) -> dict[tuple[int, int], list[Mutant]]:
    """Every mutant of a file by the place of its change."""
    seen: Counter[str] = Counter()
    sites = defaultdict(list)
    for node in ast_nodes(get_ast((ROOT / path).read_text())):
        for name, operator in OPERATORS.items():
            for start, _ in operator.mutation_positions(node):
                sites[start].append(Mutant(path, start, name, seen[name]))
                seen[name] += 1
    return sites


def is_a_change(mutant: Mutant) -> bool:
    """Whether Python reads a mutant, and does otherwise than the file."""
    changed = meaning(mutant.source())
    return changed is not None and changed != meaning((ROOT / mutant.path).read_text())


def shuffled(paths: list[str], seed: int) -> list[Mutant]:
    """One mutant of every place, in random order: the first n are a sample of n places.

    Every place counts once, as a comparison can be changed in seven ways and a call's argument in
    one.
    """
    rng = random.Random(seed)
    sites = [mutants for path in sorted(paths) for mutants in mutants_of(path).values()]
    rng.shuffle(sites)
    return [rng.choice(mutants) for mutants in sites]


def sample(paths: list[str], size: int | None, seed: int) -> list[Mutant]:
    """The first `size` of `shuffled` that change what Python reads; all of them for None."""
    drawn: list[Mutant] = []
    for mutant in shuffled(paths, seed):
        if len(drawn) == size:
            break
        if is_a_change(mutant):
            drawn.append(mutant)
    return drawn
