"""AERO networks for `transformers` without aero-torch: `trust_remote_code=True` loads this file.

The other files of the folder are those of aero-torch, but for the operators, which are the
reference forms in plain PyTorch.
"""

import warnings

from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from aero.models.causal_lm import AeroForCausalLM
from aero.models.configuration import AeroConfig
from aero.models.decoder import AeroModel
from aero.models.hugging_face_attention import register_attention

__all__ = ["AeroConfig", "AeroForCausalLM", "AeroModel"]

if "aero" not in ALL_ATTENTION_FUNCTIONS.valid_keys():
    register_attention()

warnings.warn(
    "This AERO network runs with reference operators in plain PyTorch: the same numbers, slower "
    "and with more memory. With aero-torch installed, `import aero` before loading takes the fused "
    "operators.",
    stacklevel=2,
)
