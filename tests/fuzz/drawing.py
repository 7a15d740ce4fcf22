"""Random operands: sizes, numbers and memory layouts, all drawn from one seed.

Letters: B batch, H heads, G key heads, T queries, S keys, D head width, L layers, C model width.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64)
SPECIAL = (math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-38, -1e30, 0.0, -0.0)


class Draw(random.Random):
    """Choices by Python's generator, numbers by NumPy's."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.numbers = np.random.Generator(np.random.PCG64(seed))

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def size(self, most: int = 70) -> int:
        """0, 1 and odd numbers, mostly small ones: rows, keys, widths."""
        kind = self.random()
        if kind < 0.02:
            return 0
        if kind < 0.8:
            return self.randint(1, min(9, most))
        return self.choice([n for n in (11, 13, 16, 17, 31, 32, 33, 64, 65, 67) if n <= most])

    def normal(self, shape: Sequence[int], dtype: torch.dtype, size: float = 1.0) -> Tensor:
        return torch.from_numpy(np.asarray(self.numbers.standard_normal(shape) * size)).to(dtype)

    def operand(
        self, shape: Sequence[int], dtype: torch.dtype, size: float = 1.0, special: float = 0.0
    ) -> Tensor:
        """Normal numbers in some layout, a few of them replaced by what nobody expects."""
        values = self.normal(shape, dtype, size)
        if values.numel() and self.chance(special):
            flat = values.view(-1)
            for _ in range(self.randint(1, 3)):
                flat[self.randrange(values.numel())] = self.choice(SPECIAL)
        return self.laid_out(values)

    def booleans(self, shape: Sequence[int], share: float) -> Tensor:
        return self.laid_out(torch.from_numpy(np.asarray(self.numbers.random(shape) < share)))

    def temperature(self, sizes: tuple[int, int, int], dtype: torch.dtype) -> Tensor | None:
        """None or one of every legal shape, of either sign, never zero."""
        letters = self.choice((None, (), (1,), sizes[1:2], sizes[1:], sizes))
        if letters is None:
            return None
        largest = self.choice((1, 1, 1, 1, 1, 1, 1e-4, 1e-2, 100, 1e4, 1e30))
        values = np.asarray(self.numbers.uniform(0.3, 1.5, letters) * largest)
        values = np.where(self.numbers.random(letters) < 0.5, values, -values)
        # Any floating type is taken; it is rounded to that of the statistics.
        kind = dtype if self.chance(0.95) else self.choice((torch.float64, torch.bfloat16))
        return self.laid_out(torch.from_numpy(np.asarray(values)).to(kind))

    def mask(self, sizes: Sequence[int]) -> Tensor | None:
        if self.chance(0.5):
            return None
        shape = [self.choice((1, n)) for n in sizes][self.randint(0, 4) :]
        return self.booleans(shape, self.choice((0.0, 0.2, 0.7, 0.95)))

    def laid_out(self, values: Tensor) -> Tensor:
        """The same values somewhere in memory, or the values that some layout finds there."""
        kind, sizes = self.random(), list(values.shape)
        if kind < 0.2:  # one number for a whole dimension or for all of them
            for d in range(values.dim()):
                if sizes[d] and self.chance(0.5):
                    values = values.narrow(d, 0, 1)
            return values.clone().expand(sizes)
        if kind < 0.3 and values.numel():  # windows that overlap
            offset, strides = self.choice(OFFSETS), [self.choice((0, 1, 1, 2, 3, n)) for n in sizes]
            count = offset + extent_of(sizes, strides)
            # A few numbers again and again, to save drawing them.
            memory = values.reshape(-1)[torch.arange(count) % values.numel()]
            return memory.as_strided(sizes, strides, offset)
        return self.arranged(values)

    def arranged(self, values: Tensor) -> Tensor:
        """The same values contiguous, or in any order of dimensions with gaps between them.

        What lies in the gaps is NaN (true for booleans), and memory ends with the last value, so
        that a read of anything else shows, if only under the address sanitizer.
        """
        if self.chance(0.4):
            return values.contiguous()
        sizes = list(values.shape)
        offset, strides, step = self.choice(OFFSETS), [0] * len(sizes), self.choice((1, 1, 2, 3))
        for d in self.sample(range(len(sizes)), len(sizes)):
            strides[d] = step
            step = step * max(sizes[d], 1) + self.choice((0, 0, 0, 1, 5, sizes[d] + 1))
        filler = math.nan if values.dtype.is_floating_point else 1
        memory = torch.full((offset + extent_of(sizes, strides),), filler, dtype=values.dtype)
        return memory.as_strided(sizes, strides, offset).copy_(values)


OFFSETS = (0, 1, 2, 3, 8, 17)


def extent_of(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """From the first value of a layout to one behind its last."""
    return max(sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 1, 0)
