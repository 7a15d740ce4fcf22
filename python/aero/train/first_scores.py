"""How far apart the attention scores of a network are before its first step.

With q and k weights of deviation w, inputs of deviation s, width C and temperature t, an element of
q or k has the deviation ``w s sqrt(C)``, so that a score ``q k / (sqrt(D) t)`` has
``C w^2 s^2 / t``, whatever D is. LayerNorm makes s = 1; embeddings of 0.02 on positions of 0.02
make s = 0.028, and scores 1,250 times as close.

Scores of deviation d << 1 lower the entropy of a row of n keys from ``log n`` to
``log n - d^2 / 2``: the deviation is read from entropies, which every network has.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from aero.models import AeroForCausalLM

# Below it q and k weights must grow more than tenfold, 1 / sqrt(deviation), until scores differ by
# 1 and attention prefers one key to another. A step of Adam adds the learning rate at most.
DEGENERATE = 0.01


def score_deviations(model: AeroForCausalLM, ids: Tensor) -> list[float]:
    """Returns the deviation of the scores of each layer, read from row entropies.

    The network computes as in a training step, since foldable norms have no running statistics
    before it. Weights, statistics, mode and random state stay as they are.

    Args:
        model: the network.
        ids: [B, T] tokens, T > 1.

    Returns:
        L values, root mean squares over windows, heads and rows. An estimate below 1, a lower bound
        above; float32 entropies tell nothing below 0.001. NaN where a network gives NaN.

    Example:
        >>> import torch
        >>> from aero import AeroForCausalLM
        >>> from aero.train.first_scores import score_deviations
        >>> from aero import AeroConfig
        >>> _ = torch.manual_seed(0)
        >>> ids = torch.randint(256, (4, 32))
        >>> for scale in (1.0, 50.0):
        ...     config = AeroConfig.from_label("SM", model="tiny", embedding_scale=scale)
        ...     print([round(d, 3) for d in score_deviations(AeroForCausalLM(config), ids)])
        [0.0, 0.0]
        [0.013, 0.012]
    """
    before = [buffer.clone() for buffer in model.buffers()]
    was_training = model.training
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad():
        model.train()
        try:
            layers = model.transformer(input_ids=ids, use_cache=False).entropies
        finally:
            model.train(was_training)
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)
    largest = torch.arange(2, ids.shape[1] + 1, device=ids.device, dtype=torch.float64).log()
    gaps = [float((largest - layer[..., 1:].double()).mean()) for layer in layers]
    return [math.sqrt(max(2 * gap, 0.0)) for gap in gaps]


def first_scores_warning(model: AeroForCausalLM, deviations: list[float]) -> str | None:
    """Returns a sentence on degenerate first scores and the setting that mends them, or None.

    Args:
        model: the network before its first step.
        deviations: from `score_deviations`.
    """
    config, spec = model.config, model.config.spec
    close = [deviation for deviation in deviations if deviation < DEGENERATE]
    # Shaped attention starts uniform on purpose: its heads start as the identity.
    if not close or spec.shaped_attention:
        return None
    weights, stream = config.initializer_range, config.embedding_scale * config.initializer_range
    temperature = config.temperature_init if spec.temperature != "none" else 1.0
    expected = spec.width * weights**2 / temperature  # with inputs of deviation 1
    if spec.norm == "none" and expected >= DEGENERATE:
        cause = f"no norm enlarges embeddings of deviation {stream:.2g}"
        setting = "model.embedding_scale=unit"
    elif expected * temperature >= DEGENERATE:
        cause = f"temperatures start at {temperature:g}"
        setting = "regularization.temperature_init=1"
    else:
        cause = f"weights start at a deviation of {weights:g}"
        setting = f"model.initializer_range={1 / math.sqrt(spec.width):.2g}"
    return (
        f"attention starts uniform and learns late: scores of deviation {_shown(min(close))}, "
        f"below {DEGENERATE}, because {cause}; --set {setting} mends it"
    )


def _shown(deviation: float) -> str:
    return f"{deviation:.2g}" if deviation >= 0.001 else "under 0.001"
