"""The colours of every figure and page, defined once."""

# Okabe and Ito's palette (Color Universal Design, 2008): distinguishable with every common colour
# blindness; a brown of similar weight replaces its yellow, which cannot be seen on white.
NETWORK_COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
    "#8c6d31",
)

# The same part of a network the same colour in every cost report, in the order of the bars. The
# dear parts have the palette's colours, the cheap ones greys.
PART_COLORS = {
    "softmax": "#0072b2",
    "layernorm": "#d55e00",
    "act": "#e69f00",
    "qkv/proj": "#009e73",
    "QK": "#56b4e9",
    "PV": "#8fd0f5",
    "ffn": "#cc79a7",
    "embed": "#7f7f7f",
    "lm head": "#a9a9a9",
    "argmax": "#c9c9c9",
    "setup": "#e2e2e2",
    "reveal": "#5f5f5f",
}

# For a whole layer, or a part without a colour of its own.
GREY = "#e0e0e0"
