"""Loads the operator library that lies next to this file."""

from pathlib import Path

import torch

torch.ops.load_library(Path(__file__).with_name("libaero_kernel.so"))  # type: ignore[no-untyped-call]
