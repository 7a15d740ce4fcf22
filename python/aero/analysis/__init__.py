"""Statistics and figures of attention entropies.

Numpy and matplotlib only; matplotlib loads with the first figure. Every `plot_*` takes plain
arrays, draws into the Axes it is given (or into a new pyplot figure) and returns them.

Example:
    >>> from aero import analysis
    >>> from aero.analysis.statistics import quarter_shares
    >>> head_entropy = [[0.95, 0.9], [0.3, 0.1]]  # [L, H], shares of what each head can reach
    >>> quarter_shares(head_entropy, maximum=1.0).tolist()
    [0.25, 0.25, 0.0, 0.5]
    >>> analysis.plot_entropy_heat_map(head_entropy).get_ylabel()
    'layer'
"""

from __future__ import annotations

from aero.internals.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
