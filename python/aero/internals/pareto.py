"""The Pareto front: the points that no other beats in several quantities at once."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pareto_front(points: Sequence[Sequence[float]]) -> list[int]:
    """Returns the points that no other one beats, in lexicographic order.

    A point beats another if it is no larger in every quantity and smaller in one.

    Args:
        points: N points of as many quantities each; smaller is better. Points that are not finite
            are never on the front.

    Returns:
        Indices into `points`.
    """
    finite = [index for index, point in enumerate(points) if all(map(math.isfinite, point))]
    # In this order a point can be beaten by earlier ones only.
    finite.sort(key=lambda index: tuple(points[index]))
    front: list[int] = []
    for index in finite:
        point = tuple(points[index])
        beaten = any(
            all(other <= own for other, own in zip(points[earlier], point, strict=True))
            and tuple(points[earlier]) != point
            for earlier in front
        )
        if not beaten:
            front.append(index)
    return front
