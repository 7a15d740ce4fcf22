"""Figures of entropies, learned parameters, training, and cost; `aero.analysis` exports them.

Every function takes plain arrays, draws into the Axes it is given (or into a new pyplot figure) and
returns them. The matplotlib backend, the file and its resolution are the caller's choice. Colours
are those of `aero.internals.palette`, scales are fixed where panels are compared: entropies have
[0, log T].
"""

from aero.internals.errors import extra

with extra("report"):
    import matplotlib as matplotlib
