"""Figures 20 and 21: the FFNs' share of a pass's FLOPs, by size and context length.

The paper prints the shares only in its pictures; its sentences on them are judged here, size by
size, in the convention of its Tables 4-7: per token and layer 16 d^2 in the FFN and
8 d^2 + 3 T d in attention (Appendix E has T d more per layer, which is left out).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from aero.architecture import ArchitectureSpec
from benchmarks.paper.verdicts import VERDICTS

#: Title of a figure -> size -> context length -> share of the FFNs, 0 to 1.
Shares = Mapping[str, Mapping[str, Mapping[int, float]]]

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
GPT2, PYTHIA = "Figure 20: GPT-2", "Figure 21: Pythia"
# Layers, heads and width, as published.
SIZES = {
    GPT2: {
        "124M": (12, 12, 768),
        "355M": (24, 16, 1024),
        "774M": (36, 20, 1280),
        "1.5B": (48, 25, 1600),
    },
    PYTHIA: {
        "70M": (6, 8, 512),
        "160M": (12, 12, 768),
        "410M": (24, 16, 1024),
        "1B": (16, 8, 2048),
        "1.4B": (24, 16, 2048),
        "2.8B": (32, 32, 2560),
        "6.9B": (32, 32, 4096),
        "12B": (36, 40, 5120),
    },
}


def ffn_shares() -> dict[str, dict[str, dict[int, float]]]:
    """The share of the FFNs in the FLOPs of `SM+LN+G`, for every size and length."""
    return {
        title: {
            size: {length: _share(*published, length) for length in LENGTHS}
            for size, published in sizes.items()
        }
        for title, sizes in SIZES.items()
    }


def _share(layers: int, heads: int, width: int, length: int) -> float:
    sizes = {"num_layers": layers, "num_heads": heads, "width": width, "hidden_width": 4 * width}
    spec = ArchitectureSpec.from_label("SM+LN+G", model="gpt2", context_length=length, **sizes)
    flops = spec.flops()
    return flops.ffn / (flops.ffn + flops.attention)


def share_rows(shares: Mapping[str, Mapping[int, float]]) -> list[dict[str, str]]:
    """A row per size, a column per length, in per cent."""
    return [
        {"size": size} | {f"T = {length:,}": f"{share:.1%}" for length, share in by_length.items()}
        for size, by_length in shares.items()
    ]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper on FLOPs.

    Attributes:
        text: the sentence.
        where: its place in the paper.
        verdict: whether it holds for all sizes and lengths that it speaks of, some or none.
        cells: how many those are.
        off: those it is not true of -> the FFNs' share there, 0 to 1.
    """

    text: str
    where: str
    verdict: Literal["holds", "holds in part", "does not hold"]
    cells: int
    off: Mapping[str, float]


def claim_rows(claims: Iterable[Claim]) -> list[dict[str, str]]:
    """A row per claim."""
    return [
        {
            "claim": claim.text,
            "where": claim.where,
            "verdict": VERDICTS[claim.verdict],
            "true of": f"{claim.cells - len(claim.off)} of {claim.cells}",
            "shares where it is not": " to ".join(
                f"{share:.1%}" for share in sorted({min(shares), max(shares)})
            )
            if (shares := claim.off.values())
            else "",
        }
        for claim in claims
    ]


def judge_flop_shares(shares: Shares) -> Iterator[Claim]:
    """The paper's sentences on its two figures, each judged for every size."""
    cells = {
        f"{family.partition(': ')[2]} {size} at T = {length:,}": (family, size, length, share)
        for family, sizes in shares.items()
        for size, by_length in sizes.items()
        for length, share in by_length.items()
    }
    yield _judged(
        "FFNs take most FLOPs where T < 8 d / 3",
        "Eq. 13",
        {
            name: (share > 0.5) == (length < 8 * SIZES[family][size][2] / 3)
            for name, (family, size, length, share) in cells.items()
        },
        {name: cell[3] for name, cell in cells.items()},
    )
    short = {name: cell[3] for name, cell in cells.items() if cell[2] <= 1024}
    yield _judged(
        "Up to T = 1,024 FFNs take 60 to 65 % of the FLOPs",
        "Section 4.2",
        {name: 60 <= round(100 * share) <= 65 for name, share in short.items()},
        short,
    )
    for family, text, longest in (
        (GPT2, "In GPT-2 FFNs take most FLOPs up to T = 2,048", 2048),
        (PYTHIA, "In Pythia FFNs take most FLOPs up to T = 2,048 or more", 2048),
        (GPT2, "In GPT-2 attention takes most FLOPs from T = 8,192", 8192),
    ):
        found = {size: by_length[longest] for size, by_length in shares[family].items()}
        most = {size: (share > 0.5) == (longest < 8192) for size, share in found.items()}
        yield _judged(text, family.partition(":")[0], most, found)


def _judged(
    text: str, where: str, agrees: Mapping[str, bool], shares: Mapping[str, float]
) -> Claim:
    """Holds for all, for some or for none of the cells."""
    off = {which: shares[which] for which, right in agrees.items() if not right}
    if not off:
        return Claim(text, where, "holds", len(agrees), off)
    some = len(off) < len(agrees)
    return Claim(text, where, "holds in part" if some else "does not hold", len(agrees), off)
