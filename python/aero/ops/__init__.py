"""The four operators: native C++ kernels behind torch custom ops, and their plain-PyTorch form.

Importing this package loads the operator library (`torch.ops.aero`). The functions are imported
eagerly, so that they win over the files of the same name.
"""

from aero import _library as _library
from aero.ops.attention_entropy import attention_entropy
from aero.ops.entropy_regularization import entropy_regularization
from aero.ops.scaled_ffn import scaled_ffn
from aero.ops.temperature_softmax import temperature_softmax

__all__ = [
    "attention_entropy",
    "entropy_regularization",
    "scaled_ffn",
    "temperature_softmax",
]
