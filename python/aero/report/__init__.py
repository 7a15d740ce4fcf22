"""Reports that compare trained networks: quality, entropies and the price of private inference.

`write_report` reads run folders and writes `report.html` (one file that asks nothing of the
network), `report.md`, `report.json` and `figures/*.svg`; everything is computed from the runs.

`aero.report.report_file` declares `report.json`, entry by entry.

`to_text`, `to_csv` and `to_html` show the results of `aero.mpc`.

Example:
    >>> from aero import report
    >>> report.write_report(["runs/of/nobody"], "report")
    Traceback (most recent call last):
    ...
    ValueError: report: runs/of/nobody is not a folder
"""

from __future__ import annotations

from aero.internals.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
