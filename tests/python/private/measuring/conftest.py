"""The measurement of bytes is a program of the benchmarks; its modules are imported from there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks" / "private"))
