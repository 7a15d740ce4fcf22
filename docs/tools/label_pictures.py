"""A picture per word of the label grammar: one layer of a network, the word's parts coloured."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from aero import _core
from aero.architecture import ArchitectureSpec

COLOR, GREY, EDGE = "#f6a35c", "#eef1f5", "#52627a"
#: A network that has the word, and the parts of a layer that the word is about.
EXAMPLES = {
    "SOTA:": ("SOTA:SM+ScFuFFN", "shaped values"),
    "EReg(...)": ("EReg(SM(t)+ScFuFFN)", "penalty"),
    "SM": ("SM", "softmax"),
    "(t)": ("SM(t)+ScFuFFN", "temperature"),
    "(t:head)": ("SM(t:head)+ScFuFFN", "temperature"),
    "(t:scalar)": ("SM(t:scalar)+ScFuFFN", "temperature"),
    "LN": ("SM+LN+G", "norm"),
    "FN": ("SM+FN+ScFuFFN", "norm"),
    "DyT": ("SM+DyT+G", "norm"),
    "Derf": ("SM+Derf+ScFuFFN", "norm"),
    "(channel)": ("SM+FN(channel)+ScFuFFN", "norm"),
    "(scalar)": ("SM+FN(scalar)+ScFuFFN", "norm"),
    "G": ("SM+G", "activation"),
    "R": ("SM+R", "activation"),
    "LR": ("SM+LR(layer)", "activation"),
    "WNFFN": ("SM+WNFFN", "ffn"),
    "SNFFN": ("SM+SNFFN", "ffn"),
    "FuFFN": ("SM+FuFFN", "ffn"),
    "ScFFN": ("SM+ScFFN", "scale ffn"),
    "ScFuFFN": ("SM+ScFuFFN", "scale ffn"),
    "(layer)": ("SM+LR(layer)", "activation"),
    "(global)": ("SM+LR(global)", "activation"),
    "(ffn)": ("SM+WNFFN(ffn)", "ffn"),
    "(qk)": ("SM+WNFFN(qk)", "queries"),
    "(qk+ffn)": ("SM+WNFFN(qk+ffn)", "queries ffn"),
    "(qkv+ffn)": ("SM+WNFFN(qkv+ffn)", "queries values ffn"),
    "(qkvo+ffn)": ("SM+WNFFN(qkvo+ffn)", "queries values output ffn"),
    "C4": ("SM+ScFuFFN+C4", "ffn convolution"),
    "D4": ("SM+R+D4", "convolution"),
    "S4": ("SM+ScFuFFN+S4", "convolution"),
    "_iK": ("SM+ScFuFFN_i6", "absent"),
}
NORMS = {
    "layer": "LayerNorm", "foldable_channel": "÷ RMS[c]", "foldable_scalar": "÷ RMS",
    "dynamic_tanh": "tanh(α x)", "dynamic_erf": "erf(α x + s)",
}  # fmt: skip
TEMPERATURES = {"head_position": "÷ t[h, i]", "head": "÷ t[h]", "scalar": "÷ t"}
ACTIVATIONS = {
    "gelu": "GELU", "relu": "ReLU", "leaky_relu_layer": "leaky ReLU\nslope[l]",
    "leaky_relu_global": "leaky ReLU\nslope",
}  # fmt: skip


@dataclass
class Box:
    """A part of a layer: its kind, as `EXAMPLES` names it, and its text."""

    kind: str
    text: str


def boxes(spec: ArchitectureSpec) -> Iterator[Box]:
    """The parts of the first layer in the order of the computation."""
    normalized = "‖W‖" if spec.ffn == "weight_norm" else "σ(W)"
    bare = spec.normalized_layers if spec.ffn in ("weight_norm", "spectral_norm") else ""
    if spec.norm != "none":
        yield Box("norm", NORMS[spec.norm])
    if spec.convolution == "token_shift":
        yield Box("convolution", f"{spec.convolution_taps} tokens\n× factors")
    yield Box("queries", f"q, k\n÷ {normalized}" if "qk" in bare else "q, k")
    if spec.temperature != "none":
        yield Box("temperature", TEMPERATURES[spec.temperature])
    yield Box("softmax", "softmax")
    if spec.entropy_regularized:
        yield Box("penalty", "entropy\n→ penalty")
    if spec.shaped_attention:
        yield Box("shaped", "α I + β A − γ C")
    yield Box(
        "values",
        "no values" if spec.shaped_attention else f"v\n÷ {normalized}" if "qkv" in bare else "v",
    )
    if not spec.shaped_attention:
        yield Box("output", f"output\n÷ {normalized}" if "qkvo" in bare else "output")
    if spec.norm != "none":
        yield Box("norm", NORMS[spec.norm])
    if spec.convolution == "depthwise":
        yield Box("convolution", f"{spec.convolution_taps} tokens\n× factors")
    if spec.num_pruned_ffns:
        yield Box("absent", f"no FFN in the\n{spec.num_pruned_ffns} deepest layers")
    elif "fused" in spec.ffn:
        yield Box("ffn", "linear\nd × d")
    else:
        linear = f"linear\n÷ {normalized}" if "ffn" in bare else "linear"
        yield Box("ffn", linear)
        if spec.ffn in ACTIVATIONS:
            yield Box("activation", ACTIVATIONS[spec.ffn])
        yield Box("ffn", linear)
    if spec.convolution == "full":
        yield Box("convolution", f"+ {spec.convolution_taps - 1} earlier tokens\n× d × d")
    if spec.ffn in ("scaled", "scaled_fused") and not spec.num_pruned_ffns:
        yield Box("scale", "β stream\n+ FFN ÷ α")


def figure_of(word: str) -> Figure:
    """One layer as boxes in a row, with an arrow into each and one out of the last."""
    label, coloured = EXAMPLES[word]
    parts = list(boxes(ArchitectureSpec.from_label(label)))
    widths = [max(len(line) for line in part.text.split("\n")) * 0.105 + 0.22 for part in parts]
    gap = 0.24
    total = sum(widths) + gap * (len(parts) + 1)
    figure = Figure(figsize=(total, 0.62))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, total), ylim=(0, 0.62))
    axes.axis("off")
    left = 0.0
    arrow = {"arrowstyle": "->", "color": EDGE, "shrinkA": 0, "shrinkB": 0}
    for part, width in zip(parts, widths, strict=True):
        axes.annotate("", (left + gap, 0.31), (left, 0.31), arrowprops=arrow)
        left += gap
        color = COLOR if part.kind in coloured.split() else GREY
        shape = "round,pad=0,rounding_size=0.07"
        axes.add_patch(
            FancyBboxPatch((left, 0.06), width, 0.5, boxstyle=shape, fc=color, ec=EDGE, lw=0.8)
        )
        axes.text(
            left + width / 2, 0.31, part.text, ha="center", va="center", size=8, color="#16202e"
        )
        left += width
    axes.annotate("", (total, 0.31), (left, 0.31), arrowprops=arrow)
    return figure


def picture(word: str) -> str:
    """The SVG of a word."""
    drawn = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": word}):
        figure_of(word).savefig(drawn, format="svg", transparent=False, metadata={"Date": None})
    return drawn.getvalue()


def pictures() -> dict[str, str]:
    """Every picture by the name of its file."""
    return {name_of(word): picture(word) for word in _core.label_words()}


def name_of(word: str) -> str:
    """A word as part of the name of a file."""
    return "".join(letter if letter.isalnum() else "_" for letter in word)


def words_with_pictures() -> str:
    """A section per word: its meaning, a network that has it, and the picture."""
    return "\n\n".join(
        f"### `{word}`\n\n{meaning[0].upper()}{meaning[1:]}. In `{EXAMPLES[word][0]}`:\n\n"
        f"![One layer of {EXAMPLES[word][0]}](labels/{name_of(word)}.svg)"
        for word, meaning in _core.label_words().items()
    )
