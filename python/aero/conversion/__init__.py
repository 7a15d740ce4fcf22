"""Existing networks turned into AERO networks, in one call or step by step.

`convert` goes from a network to a label; the other functions are its steps, each usable alone.

Example:
    >>> from aero import convert
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> config = GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=64, attn_pdrop=0.0)
    >>> plan = convert(GPT2LMHeadModel(config), "SM+ScFuFFN", dry_run=True)
    >>> [(step.name, step.is_exact) for step in plan.steps][:2]
    [('replace_activation', False), ('fold_layernorm', True)]
"""

from aero.conversion.absorbing import absorb_ffn
from aero.conversion.annealing import begin_annealing, finish_annealing
from aero.conversion.feed_forwards import fuse_ffn, prune_ffn, replace_activation
from aero.conversion.folding import fold_norm
from aero.conversion.label_conversion import convert
from aero.conversion.layer_norms import fold_layernorm, remove_layernorm
from aero.conversion.prunable import select_prunable_ffns

__all__ = [
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
