"""The four operators: native C++ kernels behind torch custom ops, and their plain-PyTorch form.

`accelerate` has torch's own attention on the CPU run on the first of them.

Importing this package loads the operator library (`torch.ops.aero`). The functions are imported
eagerly, so that they win over the files of the same name.

Example:
    >>> from aero.ops import attention_entropy
    >>> import torch
    >>> q, k, v = torch.zeros(3, 1, 2, 8, 16)  # [B, H, T, D] each
    >>> out, entropy, logsumexp = attention_entropy(q, k, v, is_causal=True)
    >>> torch.allclose(entropy[0, 0], torch.arange(1, 9).log(), atol=1e-6)  # uniform: log(i + 1)
    True
"""

from aero import _library as _library
from aero.ops import _cross_entropy as _cross_entropy
from aero.ops.attention_entropy import attention_entropy
from aero.ops.entropy_regularization import entropy_regularization
from aero.ops.scaled_ffn import scaled_ffn
from aero.ops.temperature_softmax import temperature_softmax
from aero.ops.torch_attention import accelerate

__all__ = [
    "accelerate",
    "attention_entropy",
    "entropy_regularization",
    "scaled_ffn",
    "temperature_softmax",
]
