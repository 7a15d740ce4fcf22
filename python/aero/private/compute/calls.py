"""Two parties that compute on shares: the interface of every way of connecting them.

`InProcessParties` has both in one process. Where each is a process of its own, both run the same
program: each gives the arrays that it owns and only the shape of the other's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aero.private.settings import PrivateSettings


class Party(IntEnum):
    """The parties; the number is SPU's rank."""

    CLIENT = 0  # owns the prompt
    SERVER = 1  # owns the weights
    HELPER = 2  # owns nothing; of ABY3 alone

    @property
    def word(self) -> str:
        """The party in messages and errors."""
        return self.name.lower()


@dataclass(frozen=True)
class AbstractArray:
    """An array of the other party: the facts that both know about it.

    Attributes:
        shape: of the array.
        dtype: float32 or int32.
    """

    shape: tuple[int, ...]
    dtype: DTypeLike = np.float32


@dataclass(frozen=True)
class Value:
    """A value that the parties hold: shares, a secret of one of them, or public.

    Attributes:
        name: under which both keep it.
        shape: of the array.
        dtype: of the array it stands for.
        public: known to both.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    public: bool = False


@dataclass(frozen=True)
class Traffic:
    """The traffic of the link: payloads as SPU's link counts them, each byte once.

    Attributes:
        client_bytes: sent by the client.
        server_bytes: sent by the server.
        client_messages: sent by the client; several can be in flight at once.
        server_messages: sent by the server.
        helper_bytes: sent by the third party, where there is one.

    Example:
        >>> from aero.private.compute.calls import Traffic
        >>> (Traffic(3, 4) + Traffic(client_bytes=1)).comm_bytes
        8
    """

    client_bytes: int = 0
    server_bytes: int = 0
    client_messages: int = 0
    server_messages: int = 0
    helper_bytes: int = 0

    @property
    def comm_bytes(self) -> int:
        """Sent by all."""
        return self.client_bytes + self.server_bytes + self.helper_bytes

    def __add__(self, other: Traffic) -> Traffic:
        both = zip(astuple(self), astuple(other), strict=True)
        return Traffic(*(one + another for one, another in both))


@dataclass(frozen=True)
class Call:
    """One thing that the parties did together.

    Attributes:
        name: of the function that ran, or of the value that was put in or revealed.
        seconds: wall time.
        cpu_seconds: of the processors of this party's process; of a function, and not counted where
            both parties are one process.
        traffic: over the link. Shares of inputs and outputs count with 8 bytes per element, as
            their owner or the other party sends them.
    """

    name: str
    seconds: float
    traffic: Traffic
    cpu_seconds: float = 0.0


class Parties(Protocol):
    """Two connected parties."""

    settings: PrivateSettings
    calls: list[Call]

    def put(
        self,
        name: str,
        array: NDArray[Any] | AbstractArray,
        owner: Party | None,
        *,
        private: bool = False,
    ) -> Value:
        """Makes an array known to the computation.

        Args:
            name: for the record.
            array: float32 or int32; of the other party only its shape.
            owner: whose secret it is; None makes it public.
            private: the owner keeps it and uses it in the clear; else it is split into shares.
        """

    def run(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Computes a JAX function of values; the results stay shared.

        Args:
            name: for the record.
            function: of arrays, in any nesting of tuples, lists and dicts that JAX knows.
            *arguments: the same nesting with a `Value` for each array.

        Returns:
            The function's result, with a `Value` for each array.
        """

    def reveal(self, value: Value) -> NDArray[Any] | None:
        """Opens a value to the client; the server's process gets None."""

    def discard(self, *values: Value) -> None:
        """Frees values."""

    def close(self) -> None:
        """Ends the connection and removes its files."""
