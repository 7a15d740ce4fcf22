"""ViT: patches of a picture, with a learned row in front that is classified."""

from __future__ import annotations

from aero.families.decoders import attend
from aero.families.heads import labels
from aero.families.sizes import Described
from aero.families.values import Values
from aero.families.writer import Writer


def vit(values: Values) -> Described:
    """ViT, with its classifier."""
    width, heads = values.size("hidden_size"), values.size("num_attention_heads")
    if width % heads:
        raise values.wrong("hidden_size", f"a multiple of {heads} heads", width)
    picture, patch = values.size("image_size", default=224), values.size("patch_size", default=16)
    if picture < patch:
        raise values.wrong("image_size", f"an integer from patch_size, {patch}", picture)
    patches = (picture // patch) ** 2
    numbers = patch**2 * values.size("num_channels", default=3)
    writer = Writer()
    writer.add("source", "patches", positions=patches, width=numbers, name="patches")
    writer.linear("x", "patches", "patch_embedding", "patches to channels", "ffn", numbers, width,
                  bias=True)  # fmt: skip
    writer.add("rearrange", "x", "x", positions=patches + 1, width=width, name="row in front")
    writer.table("places", "positions", "position_embedding", patches + 1, width)
    writer.add("add", "x", "x", "places")
    writer.layers((0,) * values.size("num_hidden_layers"), lambda _: _layer(values, writer))
    _norm(values, writer, "x", "final_norm", "final norm")
    writer.add("pool", "pooled", "x", name="first row", kind="first")
    writer.linear("logits", "pooled", "head", "logits", "lm head", width, labels(values), bias=True)
    return Described(values.family, writer.operations, patches + 1, 0, fixed=True)


def _layer(values: Values, writer: Writer) -> None:
    width, heads = values.size("hidden_size"), values.size("num_attention_heads")
    hidden, bias = values.size("intermediate_size"), values.flag("qkv_bias", default=True)
    _norm(values, writer, "normed", "norm_1", "norm before attention")
    writer.linear("projected", "normed", "attention.projection", "queries, keys, values",
                  "qkv/proj", width, 3 * width, bias=bias)  # fmt: skip
    for place, name in enumerate(("queries", "keys", "values")):
        writer.add("split_heads", name, "projected", start=place * width, heads=heads,
                   head_dim=width // heads)  # fmt: skip
    attend(writer, heads, heads, width // heads, scale=(width // heads) ** -0.5, causal=False)
    writer.linear("attended", "joined", "attention.output", "projection", "qkv/proj", width, width,
                  bias=True)  # fmt: skip
    writer.add("add", "x", "x", "attended")
    _norm(values, writer, "normed", "norm_2", "norm before FFN")
    writer.linear("hidden", "normed", "feed_forward.0", "FFN, in", "ffn", width, hidden, bias=True)
    writer.activation("hidden", values.function("hidden_act", default="gelu"), hidden)
    writer.linear("fed", "hidden", "feed_forward.1", "FFN, out", "ffn", hidden, width, bias=True)
    writer.add("add", "x", "x", "fed")


def _norm(values: Values, writer: Writer, output: str, key: str, name: str) -> None:
    writer.norm(output, "x", key, name, "layer", values.size("hidden_size"),
                values.number("layer_norm_eps", default=1e-12), bias=True)  # fmt: skip
