"""Labels, sizes and counts of networks; importable without torch.

An `ArchitectureSpec` says everything about a network that its cost and its modules need: the
choices of its label and its sizes. `help(aero.ArchitectureSpec)` lists the words of labels.

Example:
    >>> from aero.architecture import ArchitectureSpec
    >>> spec = ArchitectureSpec.from_label("SM+ScFuFFN_i6", model="gpt2")
    >>> spec.num_layers, spec.num_pruned_ffns, spec.parameter_count()
    (12, 6, 70587660)
    >>> str(spec.nonlinear_operations())
    'SM:144xR^{128x128}'
"""

from __future__ import annotations

from aero._core import ArchitectureSpec
from aero._core import Flops as Flops
from aero._core import NonlinearOperations as NonlinearOperations
from aero._core import OperationCount as OperationCount
from aero._core import label_words as label_words
from aero._core import part_names as part_names
from aero._core import size_names as size_names

__all__ = ["ArchitectureSpec"]
