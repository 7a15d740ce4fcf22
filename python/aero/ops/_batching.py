"""torch.vmap for operators whose tensors start with a batch dimension: fold one into the other."""

from __future__ import annotations

from torch import Tensor


def fold_batch(x: Tensor, dim: int | None, size: int) -> Tensor:
    """[B, ...] mapped over `size` values of dimension `dim` (None: shared) -> [size * B, ...]."""
    x = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.flatten(0, 1)


def unfold_batch(x: Tensor, size: int) -> Tensor:
    """[size * B, ...] -> [size, B, ...]."""
    return x.reshape(size, x.shape[0] // size, *x.shape[1:])


def fold_temperature(
    temperature: Tensor | None, dim: int | None, size: int, rows: tuple[int, int, int]
) -> Tensor | None:
    """A temperature of any legal shape -> one that fits a folded batch; rows is (B, H, T)."""
    if temperature is None or (dim is None and temperature.dim() < 3):
        return temperature
    mapped = temperature[None] if dim is None else temperature.movedim(dim, 0)
    if mapped.dim() == 2:  # [size, H] or [size, 1]: heads, not rows
        mapped = mapped[..., None]
    mapped = mapped[(slice(None), *[None] * (4 - mapped.dim()), ...)]
    return mapped.expand(size, *rows).flatten(0, 1)


def fold_mask(mask: Tensor | None, dim: int | None, size: int, batch: int) -> Tensor | None:
    """A mask that broadcasts to [B, H, T, S] -> one that fits a folded batch."""
    if mask is None or (dim is None and (mask.dim() < 4 or mask.shape[0] == 1)):
        return mask
    mapped = mask[None] if dim is None else mask.movedim(dim, 0)
    mapped = mapped[(slice(None), *[None] * (5 - mapped.dim()), ...)]
    return mapped.expand(size, batch, *mapped.shape[2:]).flatten(0, 1)
