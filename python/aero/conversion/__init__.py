"""Existing networks turned into AERO networks, in one call or step by step.

`convert` goes from a network to a label; the other functions are its steps, each usable alone.
"""

from aero.conversion.absorbing import Absorption, LayerAbsorption, absorb_ffn
from aero.conversion.activations import replace_activation
from aero.conversion.annealing import begin_annealing, finish_annealing
from aero.conversion.feed_forwards import fuse_ffn, prune_ffn
from aero.conversion.folding import fold_norm
from aero.conversion.label_conversion import convert
from aero.conversion.layer_norms import fold_layernorm, remove_layernorm
from aero.conversion.plan import ConversionPlan, Size
from aero.conversion.prunable import PrunableFfns, select_prunable_ffns
from aero.conversion.steps import Step

__all__ = [
    "Absorption",
    "ConversionPlan",
    "LayerAbsorption",
    "PrunableFfns",
    "Size",
    "Step",
    "absorb_ffn",
    "begin_annealing",
    "convert",
    "finish_annealing",
    "fold_layernorm",
    "fold_norm",
    "fuse_ffn",
    "prune_ffn",
    "remove_layernorm",
    "replace_activation",
    "select_prunable_ffns",
]
