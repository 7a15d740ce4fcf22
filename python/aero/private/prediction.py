"""The simulator's predictions for the pieces of a private run, and the part left to chance.

Oblivious transfers come from Ferret extensions of 0.266 MB, products of short vectors take their
triples from refills of 1.14 MB. SPU makes both in advance and sends them whole, each when the last
one is used up. Of a series of runs the share of the first and the last one is left to chance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any

from aero import mpc
from aero.mpc import ComputeProfile, NetworkProfile
from aero.mpc.cost import Cost, Operation
from aero.mpc.latency import Duration, Latency
from aero.mpc.simulation import described_pass
from aero.network.description import Description, operations_of
from aero.private.settings import RING_BITS, PrivateSettings

# Of `aero.private.compute.inference.set_up`, which this environment cannot import.
_ELEMENTS_PER_THREAD = 2048
# Slots of ciphertexts that one refill of SPU's cached triples takes: two for each of 4,096.
_CACHED_TRIPLES_SLOTS = 8192

# Operations behind the head, each a `Call` of its own.
_BEHIND_THE_HEAD = frozenset({"argmax", "reveal", "top-k"})


def predicted_operations(
    description: Description,
    length: int,
    settings: PrivateSettings,
    rows: int | None = None,
    sequences: int = 1,
) -> tuple[Operation, ...]:
    """All that one pass runs, priced, without the set-up.

    Args:
        description: of a network; of it "operations" and "vocab_size" are read.
        length: tokens so far, those of the pass included.
        settings: of the run.
        rows: tokens that the pass reads, the last of them; default: all.
        sequences: side by side, of equal lengths.
    """
    stack = {**settings.stack_fields(), **network_fields(description), "setup": False}
    found = described_pass(
        description["operations"],
        rows=length if rows is None else rows,
        keys=length,
        sequences=sequences,
        stack=settings.stack,
        **stack,
    )
    if settings.reveal != "top-k":
        return found
    *others, last = (one for one in found if one.kind != "argmax")
    vocabulary = description["vocab_size"]
    count = min(settings.top_k, vocabulary)
    cost = likeliest_cost(vocabulary, count, settings)
    shape = f"{count} of {vocabulary}"
    ready = (len(others),)
    likeliest = Operation(
        name="likeliest tokens", layer=None, kind="top-k", shape=shape, inputs=ready, cost=cost
    )
    return *others, last, likeliest


def likeliest_cost(vocabulary: int, count: int, settings: PrivateSettings) -> Cost:
    """The k best of V logits, one after the other, see `aero.private.compute.pieces.likeliest`.

    Each takes an argmax, a comparison of its token with all V places, and the choice of its logit;
    but for the last, another choice takes it out.
    """
    row = [
        ("argmax", (vocabulary,)),
        ("equality", (vocabulary, RING_BITS)),
        ("multiplexer", (vocabulary,)),
    ]
    operations = count * row + (count - 1) * row[-1:]
    fields = settings.stack_fields()
    return total_cost(
        mpc.operation_cost(name, *sizes, stack=settings.stack, **fields)
        for name, sizes in operations
    )


def predicted_costs(
    description: Description,
    length: int,
    settings: PrivateSettings,
    rows: int | None = None,
    sequences: int = 1,
) -> dict[str, Cost]:
    """All that the simulator counts of a pass, by the names of `Call`s.

    Rounds add up, as pieces run one after the other. Arguments are `predicted_operations`'.
    """
    found: dict[str, list[Cost]] = {}
    operations = predicted_operations(description, length, settings, rows, sequences)
    for piece, operation in zip(pieces_of(operations), operations, strict=True):
        found.setdefault(piece, []).append(operation.cost)
    costs = {piece: total_cost(operations) for piece, operations in found.items()}
    return costs | {"set-up": set_up_cost(settings)}


def predicted_durations(
    operations: tuple[Operation, ...], network: NetworkProfile, compute: ComputeProfile
) -> dict[str, Duration]:
    """The cost of the pieces of a pass, by the names of `Call`s."""
    found: dict[str, Duration] = {}
    durations = Latency.of("", operations, network, compute).operations
    for piece, duration in zip(pieces_of(operations), durations, strict=True):
        found[piece] = found.get(piece, Duration(0, 0, 0)) + duration
    return found


def machine_profiles(
    machine: str, link: str, threads: int
) -> tuple[NetworkProfile, ComputeProfile]:
    """Link and machines of a file of `aero private calibrate`.

    Args:
        machine: the file.
        link: "tcp", or a network: its wire, with the machine's software per round and byte.
        threads: of each party.
    """
    network, compute = mpc.network_profile(machine), mpc.compute_profile(machine, threads=threads)
    if link != "tcp":
        wire = mpc.network_profile(link)
        # Seconds per bit add up; both parties send about as much, at once where it is full duplex.
        each = (2 if wire.full_duplex else 1) / network.uplink_mbps
        network = dataclasses.replace(
            wire,
            uplink_mbps=1 / (1 / wire.uplink_mbps + each),
            downlink_mbps=1 / (1 / wire.downlink_mbps + each),
            software_seconds=wire.software_seconds + network.software_seconds,
        )
    return network, compute


def pieces_of(operations: Iterable[Operation]) -> Iterator[str]:
    """The `Call` that each operation of a pass runs in."""
    before_layers = True
    for operation in operations:
        if operation.layer is not None:
            before_layers = False
            yield f"layer {operation.layer}"
        elif operation.kind in _BEHIND_THE_HEAD:
            yield operation.kind
        else:
            yield "embedding" if before_layers else "head"


def set_up_cost(settings: PrivateSettings) -> Cost:
    """The predicted cost of `compute.inference.set_up`: keys, and the operations that make them.

    Those are a small matrix product, products that fill SPU's first cache of triples, and a
    truncation of so many elements that every thread has some.
    """
    operations: list[tuple[str, tuple[int, ...]]] = [
        ("matmul", (2, 2, 2)),
        ("truncation", (_ELEMENTS_PER_THREAD * settings.threads,)),
    ]
    if settings.protocol == "cheetah":  # the others begin with nothing
        operations += [("setup", ()), ("private_product", (_CACHED_TRIPLES_SLOTS,))]
    fields = settings.stack_fields()
    return total_cost(
        mpc.operation_cost(name, *sizes, stack=settings.stack, **fields)
        for name, sizes in operations
    )


# A party sends more than the simulator's average: frames around SPU's and its own messages, whole
# refills and extensions, signs of life. At most it is a share more, bytes per round and per thread.
_MOST_SHARE, _MOST_PER_ROUND, _MOST_PER_THREAD = 0.01, 512, 1 << 22


def passes_cost(
    description: Description,
    rows: Iterable[int],
    settings: PrivateSettings,
    before: int = 0,
    sequences: int = 1,
) -> Cost:
    """The predicted cost of passes that follow each other.

    Args:
        description: of the network.
        rows: tokens that each pass reads.
        settings: of the run.
        before: tokens that earlier passes have read.
        sequences: side by side, of equal lengths.
    """
    cost, length = Cost(), before
    for count in rows:
        length += count
        operations = predicted_operations(description, length, settings, count, sequences)
        cost += total_cost(operation.cost for operation in operations)
    return cost


def most_sent(
    description: Description,
    rows: Iterable[int],
    settings: PrivateSettings,
    sequences: int = 1,
) -> tuple[int, int] | None:
    """Bytes that client and server send at most in a run, besides the shares of weights.

    Args:
        description: of the network.
        rows: tokens that each pass reads.
        settings: of the run.
        sequences: side by side, of equal lengths.

    Returns:
        The client's and the server's; None where the simulator does not know a setting.
    """
    if settings.spu_fields:
        return None
    cost = set_up_cost(settings) + passes_cost(description, rows, settings, 0, sequences)
    more = _MOST_PER_ROUND * cost.rounds + _MOST_PER_THREAD * settings.threads
    client, server = (
        math.ceil((1 + _MOST_SHARE) * sent + more)
        for sent in (cost.client_bytes, cost.server_bytes)
    )
    return client, server


def weight_elements(description: Description) -> int:
    """Numbers of all weights as the operations take them, shared ones as often as they are read."""
    sizes = {name: math.prod(each["shape"]) for name, each in description["tensors"].items()}
    context = description["context_length"]
    return sum(
        one.fields["heads"] * context**2 if one.op == "shape" else sizes[name]
        for one in operations_of(description)
        for name in one.weights.values()
    )


def network_fields(description: Description) -> dict[str, Any]:
    """Fields of a stack that a network's description tells, besides the settings."""
    functions = {one.fields.get("function") for one in operations_of(description)}
    return {"gelu": "erf"} if "gelu_erf" in functions else {}


def total_cost(costs: Iterable[Cost]) -> Cost:
    """The cost of operations that run one after the other."""
    return sum(costs, start=Cost())


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
    """Bytes of one run that are not explained when extensions and refills are counted whole.

    The prediction is an average over many runs. A series sees the whole number of extensions below
    or above, in each direction, and of refills; of these the combination that leaves least is
    taken. Their sums lie close: chance alone leaves some 30 kB of a whole series. Both parties'
    `measured_bytes` are the mean of `count` runs, and `cost` is of one run.
    """
    return _explained(cost, count, measured_bytes, one_bit_product_error)[0] / count


def extensions(cost: Cost, measured_bytes: float) -> int:
    """How many Ferret extensions a run made, by its bytes; see `remainder`."""
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
    if not cost.ots:  # of a protocol that makes none
        wholes = range(1)
    deviation = count * (measured_bytes - cost.comm_bytes)
    left = (
        (deviation - (whole - average) * _EXTENSION_BYTES - refill * refill_bytes, whole)
        for whole in wholes
        for refill in refills
    )
    return min(left, key=lambda each: abs(each[0]))
