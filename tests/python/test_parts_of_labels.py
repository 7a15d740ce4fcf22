"""A part of labels is in at most ten source files. `python -m tests.python.test_parts_of_labels`
lists them for a part, a norm and an activation; with `-v` their lines too.

A file has a part where a line names it in any form: a field, a word of labels, a class, a member, a
sentence. Sources are csrc, kernels and the package; tests, docs and benchmarks are not. Operations
that a part is made of are counted apart: networks without it have them too.
"""

import re
import sys
from pathlib import Path

from aero.architecture import ArchitectureSpec, label_words, part_names
from aero.conversion.parts import adding_steps
from aero.models import AeroConfig, AeroForCausalLM
from aero.nn.parts import BLOCK_PARTS, part_places

ROOT = Path(__file__).parents[2]
SUFFIXES = {".h", ".cpp", ".cu", ".py", ".pyi"}
MOST = 10
# How lines name a part.
PATTERNS = {
    "convolution": r"(?i)convol|\bconv\b|taps\b|token.?shift|depthwise|['\"][cds][2-8]\b|\[CDS\]",
    "Derf": r"(?i)derf\b|dynamic.?erf",
    "leaky ReLU": r"(?i)leaky|\bLR\b",
}
# Files with these words that no label's convolution is in.
UNFOLD, OF_OTHERS = "the operation `unfold`", "convolutions of pictures and sounds"
OTHERS = {
    "csrc/mpc/lowering.cpp": UNFOLD,  # in words
    "csrc/network/network.h": UNFOLD,
    "python/aero/families/encoder_decoders.py": OF_OTHERS,
    "python/aero/network/checks.py": UNFOLD,
    "python/aero/network/folding.py": UNFOLD,
    "python/aero/network/numpy_reader.py": UNFOLD,
    "python/aero/network/primitives.py": UNFOLD,
    "python/aero/private/compute/forward.py": UNFOLD,
}


def files_with(pattern):
    """The source files with lines that a pattern is found in, and those lines."""
    found = {}
    for room in ("csrc", "kernels", "python/aero"):
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in SUFFIXES:
                lines = path.read_text(encoding="utf-8").splitlines()
                hits = {n: line for n, line in enumerate(lines, 1) if re.search(pattern, line)}
                if hits:
                    found[path.relative_to(ROOT).as_posix()] = hits
    return found


def test_every_part_of_the_grammar_has_a_module_and_a_step_that_adds_it():
    sizes = ArchitectureSpec.from_label("SM", model="tiny")
    assert part_names() == list(BLOCK_PARTS)
    config = AeroConfig.from_spec(sizes)
    for word in label_words():
        if re.fullmatch(r"[A-Z]\d", word):
            target = ArchitectureSpec.from_label(f"SM+{word}", model="tiny")
            [step] = adding_steps(config, target)
            assert step.config.spec == target
            assert [*AeroForCausalLM(step.config).transformer.h[0].parts()] == [
                *part_places(target)
            ]


def test_the_convolution_is_in_at_most_ten_source_files():
    found = files_with(PATTERNS["convolution"])
    assert not OTHERS.keys() - found.keys(), "these do not name one any more"
    own = sorted(found.keys() - OTHERS.keys())
    assert len(own) <= MOST, own
    said = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    count = {6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten"}[len(own)]
    assert f"lists the {count} of the convolution" in said, own


if __name__ == "__main__":
    for part, pattern in PATTERNS.items():
        found = files_with(pattern)
        others = OTHERS if part == "convolution" else {}
        print(f"{part}: {len(found.keys() - others.keys())} files")
        for file, hits in found.items():
            why = f" ({others[file]})" if file in others else ""
            print(f"  {file}: {len(hits)} lines{why}")
            if "-v" in sys.argv:
                print(*(f"    {number}: {line.strip()}" for number, line in hits.items()), sep="\n")
