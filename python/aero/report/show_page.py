"""The page of `aero show`: tokens coloured by entropy, every head, and private costs.

One script, `templates/show.js`, redraws what a reader chooses; the page's policy names its
checksum, so no other script runs, and nothing is loaded. Without it the page still has all tokens
and entropies. Tokens may be a stranger's: they reach the page escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from numpy.typing import NDArray

from aero import mpc
from aero.analysis import FIGURE_STYLE, plot_stepwise_savings
from aero.analysis.figures.entropy import row_entropies
from aero.architecture import ArchitectureSpec
from aero.internals.errors import extra
from aero.reading import printable, shown
from aero.report.picture import svg_of

with extra("report"):
    from matplotlib import rc_context
    from matplotlib.figure import Figure

_LETTERS = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8
)
# Two letters a weight: steps of 0.4 % down to e^-16.4, where nothing is left to see.
_CODES_PER_NAT, _NOTHING = 250, 4095
# Of all networks together: 1.6 MB, so that a page stays below 2 MB.
MOST_WEIGHTS = 800_000
# The label becomes cheaper from step to step, as in the paper's Figure 1.
_LADDER = ("SM+LN+G", "SM+LN+R", "SM+FN+R", "SM+ScFuFFN")
_SIZES = (
    "num_layers", "num_heads", "head_dim", "width", "hidden_width", "context_length", "vocab_size",
)  # fmt: skip

Weights = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ShownNetwork:
    """A network and what its heads do with a text.

    Attributes:
        name: of the run or the folder.
        tokens: T, as text.
        attention: [L, H, T, T], weights.
        largest: [L, T], the most that the entropy of a row can be, nats.
        spec: of AERO networks, whose private cost is shown; None for others.
    """

    name: str
    tokens: Sequence[str]
    attention: Weights
    largest: NDArray[np.float64]
    spec: ArchitectureSpec | None = None


def most_tokens(heads: int) -> int:
    """Returns how many tokens fit on a page with so many heads, of all layers and networks."""
    return int((np.sqrt(1 + 8 * MOST_WEIGHTS / heads) - 1) / 2)


def token_costs(spec: ArchitectureSpec, prompt_tokens: int) -> dict[str, float]:
    """Returns label -> bytes of one more private token, at the sizes of a network.

    Args:
        spec: the network; its own label comes last, if it is not a step of the paper's.
        prompt_tokens: in front of the token.
    """
    sizes = {name: getattr(spec, name) for name in _SIZES}
    specs = {label: ArchitectureSpec.from_label(label, **sizes) for label in _LADDER}
    specs.setdefault(spec.label, spec)
    return {
        label: mpc.simulate_generation(
            one.replace(context_length=prompt_tokens), new_tokens=2
        ).per_token[1].comm_bytes
        for label, one in specs.items()
    }  # fmt: skip


def show_page(networks: Sequence[ShownNetwork]) -> str:
    """Returns the page of one network, or of several next to each other."""
    environment = Environment(
        loader=PackageLoader("aero.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    script = (files("aero.report") / "templates" / "show.js").read_text("utf-8")
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("show.html.j2").render(
        title=" and ".join(_title(one) for one in networks),
        networks=[_values(one) for one in networks],
        data=htmlsafe_json_dumps([_data(one) for one in networks]),
        script=Markup(script),
        checksum=Markup(checksum),
    )


def _title(one: ShownNetwork) -> str:
    return printable(one.name) + (f": {one.spec.label}" if one.spec else "")


def _values(one: ShownNetwork) -> dict[str, object]:
    """What the page has of a network before its script runs."""
    entropies = row_entropies(one.attention)  # [L, H, T]
    by_token, largest = entropies.mean(axis=(0, 1)), one.largest.mean(axis=0)
    return {
        "name": _title(one),
        "words": [shown(token) for token in one.tokens],
        "by_token": by_token,
        "largest": largest,
        "shares": (100 * by_token / np.maximum(largest, 1e-9)).clip(0, 100).round(1),
        "entropies": entropies.mean(axis=2),
        "costs": Markup(_costs(one.spec, len(one.tokens))) if one.spec else "",
    }


def _data(one: ShownNetwork) -> dict[str, object]:
    """What the script reads."""
    return {
        "words": [shown(token) for token in one.tokens],
        "heads": one.attention.shape[1],
        "most": one.largest.round(4).tolist(),
        "weights": packed(one.attention),
    }


def packed(attention: Weights) -> str:
    """Returns the weights that causal rows can have, two letters each, as `show.js` reads them.

    Args:
        attention: [L, H, T, T]; row i has i + 1 weights.
    """
    rows, keys = np.tril_indices(attention.shape[-1])
    weights = attention[:, :, rows, keys].ravel()
    logarithms = np.log(np.where(weights > 0, weights, 1.0))
    codes = np.clip(np.rint(-_CODES_PER_NAT * logarithms), 0, _NOTHING - 1).astype(np.int64)
    codes[weights <= 0] = _NOTHING
    letters: bytes = _LETTERS[np.stack([codes // 64, codes % 64], axis=1)].tobytes()
    return letters.decode("ascii")


def _costs(spec: ArchitectureSpec, prompt_tokens: int) -> str:
    costs = token_costs(spec, prompt_tokens)
    with rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(4.9, 0.8 + 0.34 * len(costs)), layout="constrained")
        axes = figure.subplots()
        unit = "MB of one more token, both parties"
        plot_stepwise_savings(
            [*costs], [cost / 1e6 for cost in costs.values()], unit=unit, axes=axes
        )
    return svg_of(figure, "Bytes of one more private token by label")
