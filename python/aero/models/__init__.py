"""AERO networks for `transformers`; importing this registers them and the attention names.

Example:
    >>> from aero import AeroConfig, AeroForCausalLM, entropies
    >>> import torch
    >>> config = AeroConfig.from_label("EReg(SM(t)+ScFuFFN)", model="tiny", entropy_weight=1e-4)
    >>> model = AeroForCausalLM(config).train()
    >>> tokens = torch.randint(256, (2, 16))
    >>> output = model(tokens, labels=tokens)
    >>> bool(output.loss == output.lm_loss + output.penalty_nats)
    True
    >>> entropies(model, tokens).summary().head_entropy.shape  # layers, heads
    (2, 2)
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from aero.models.causal_lm import AeroForCausalLM
from aero.models.configuration import AeroConfig
from aero.models.decoder import AeroModel
from aero.models.entropy_penalty import EntropyPenalty
from aero.models.fixed_point_network import FixedPointForCausalLM
from aero.models.hugging_face_attention import register_attention
from aero.models.penalized_models import with_entropy_penalty, without_entropy_penalty
from aero.models.row_entropies import entropies

register_attention()
AutoConfig.register("aero", AeroConfig, exist_ok=True)
AutoModel.register(AeroConfig, AeroModel, exist_ok=True)
AutoModelForCausalLM.register(AeroConfig, AeroForCausalLM, exist_ok=True)

__all__ = [
    "AeroConfig",
    "AeroForCausalLM",
    "EntropyPenalty",
    "FixedPointForCausalLM",
    "entropies",
    "with_entropy_penalty",
    "without_entropy_penalty",
]
