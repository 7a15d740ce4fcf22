"""How many runs an average needs, and its remainder: SPU sends whole batches in advance.

Oblivious transfers come from Ferret extensions of 0.266 MB, products of short vectors take their
triples from refills of 1.14 MB, each sent when the last one is used up. Of a series of runs the
share of the first and the last one is left to chance.
"""

from __future__ import annotations

import math

from aero.mpc.cost import Cost

__all__ = ["EXTENSION_OTS", "extensions", "remainder", "resolution"]

# Of Ferret as SPU uses it: bytes that the sender sends, and OTs that they make; each party has one.
_EXTENSION_BYTES, EXTENSION_OTS = 266_259, 10_017_120
# The elementwise ciphertexts of 4,096 triples, and how many those are; with one-bit errors one
# plaintext prime less, and other ciphertexts.
_REFILL_BYTES, _REFILL_CIPHERTEXTS = 4 * (160_951 + 125_030), 4
_ONE_BIT_REFILL_BYTES, _ONE_BIT_REFILL_CIPHERTEXTS = 3 * (162_094 + 126_314), 3


def resolution(cost: Cost, count: int) -> float:
    """Standard deviation of the average bytes of `count` runs, as a part of them.

    A series that needs x of them sees the whole number below or above, at a phase that is as likely
    as any other: the variance is f (1 - f) of the fraction f of x, at most x and at most 1/4. How
    the OTs are divided between the two directions is left open: at most x, and twice 1/4.

    Args:
        cost: of one run, by the simulator.
        count: how many runs.

    Example:
        >>> from aero.private.measuring.refills import resolution
        >>> from aero import mpc
        >>> relu = mpc.operation_cost("relu", 65536, stack="spu-0.9.5")
        >>> resolution(relu, 16) < 0.002 < resolution(relu, 2)
        True
    """
    variance = min(count * cost.ots / EXTENSION_OTS, 0.5) * _EXTENSION_BYTES**2
    # Operations on long vectors take whole ciphertexts, an even number, and no triples.
    if cost.elementwise_ciphertexts % 1:
        refills = count * cost.elementwise_ciphertexts / _REFILL_CIPHERTEXTS
        variance += min(refills, 0.25) * _REFILL_BYTES**2
    return math.sqrt(variance) / (count * cost.comm_bytes)


def remainder(
    cost: Cost, count: int, measured_bytes: float, *, one_bit_product_error: bool = False
) -> float:
    """The rest of measured - predicted when extensions and refills are counted whole.

    The prediction is an average over many runs. A series sees the whole number of extensions below
    or above, in each direction, and of refills; of these the combination that leaves least is
    taken. Their sums lie close: chance alone leaves some 30 kB of a whole series.

    Args:
        cost: of one run, by the simulator.
        count: how many runs.
        measured_bytes: of one run on average, sent by both parties.
        one_bit_product_error: as of the settings.

    Returns:
        Bytes of one run.

    Example:
        >>> from aero.private.measuring.refills import remainder
        >>> from aero import mpc
        >>> softmax = mpc.operation_cost("softmax", 512, 128, stack="spu-0.9.5")
        >>> measured = (114122071 + 95590278) / 2  # two runs, 0.52 % less than predicted
        >>> abs(remainder(softmax, 2, measured) / measured) < 2e-5
        True
    """
    return _explained(cost, count, measured_bytes, one_bit_product_error)[0] / count


def extensions(cost: Cost, measured_bytes: float) -> int:
    """How many Ferret extensions a run made, by its bytes; see `remainder`.

    Example:
        >>> from aero import mpc
        >>> relu = mpc.operation_cost("relu", 65536, stack="spu-0.9.5")
        >>> none = relu.comm_bytes - 266_259 * relu.ots / 10_017_120
        >>> from aero.private.measuring.refills import extensions
        >>> extensions(relu, none), extensions(relu, none + 266_259)
        (0, 1)
    """
    return _explained(cost, 1, measured_bytes, one_bit_product_error=False)[1]


def _explained(
    cost: Cost, count: int, measured_bytes: float, one_bit_product_error: bool
) -> tuple[float, int]:
    """Bytes that are left of a series, and the extensions that leave so few."""
    refill_bytes, ciphertexts = (
        (_ONE_BIT_REFILL_BYTES, _ONE_BIT_REFILL_CIPHERTEXTS)
        if one_bit_product_error
        else (_REFILL_BYTES, _REFILL_CIPHERTEXTS)
    )
    # Products of long vectors take whole or half as many ciphertexts as a refill, so that of what
    # is begun on average nothing is known beyond the half.
    begun = count * cost.elementwise_ciphertexts / ciphertexts % 0.5
    refills = [-begun - 0.5, -begun, 0.5 - begun, 1 - begun]
    if not cost.elementwise_ciphertexts % 1:
        refills = [0.0]
    average = count * cost.ots / EXTENSION_OTS
    wholes = range(max(0, math.ceil(average - 2)), math.floor(average + 2) + 1)
    deviation = count * (measured_bytes - cost.comm_bytes)
    left = (
        (deviation - (whole - average) * _EXTENSION_BYTES - refill * refill_bytes, whole)
        for whole in wholes
        for refill in refills
    )
    return min(left, key=lambda each: abs(each[0]))
