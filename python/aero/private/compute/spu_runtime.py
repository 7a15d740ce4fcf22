"""SPU's configuration, compiler and counters behind `Parties`; needs the private environment."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import spu
import spu.utils.frontend as frontend
from spu import libspu

from aero.private.compute.calls import Call, Party, Traffic, Value
from aero.private.settings import PrivateSettings
from aero.private.temporary import temporary_folder


def runtime_config(settings: PrivateSettings, *, profiled: bool) -> Any:
    """SPU's `RuntimeConfig`, over Z_2^64.

    Args:
        settings: of both parties.
        profiled: whether this party writes counts of its link to the log.
    """
    config = libspu.RuntimeConfig(
        getattr(libspu.ProtocolKind, settings.protocol.upper()),
        libspu.FieldType.FM64,
        settings.fraction_bits,
    )
    config.fxp_exp_mode = libspu.RuntimeConfig.ExpMode.EXP_TAYLOR
    config.fxp_exp_iters = settings.exp_squarings
    config.max_concurrency = settings.threads
    config.enable_pphlo_profile = profiled
    # Without it a value that one party owns is split into shares at once.
    config.experimental_enable_colocated_optimization = True
    cheetah: dict[str, Any] = {"enable_mul_lsb_error": settings.one_bit_product_error}
    parsed = libspu.RuntimeConfig()
    for name, value in settings.spu_fields.items():
        if parsed.ParseFromJsonString(json.dumps({name: value})):
            setattr(config, name, getattr(parsed, name))
        elif parsed.ParseFromJsonString(json.dumps({"cheetah_2pc_config": {name: value}})):
            cheetah[name] = value
    # Python does not know the type of `ot_kind`; in JSON it is a word.
    parsed.ParseFromJsonString(json.dumps({"cheetah_2pc_config": cheetah}))
    config.cheetah_2pc_config = parsed.cheetah_2pc_config
    return config


def compiler_options(settings: PrivateSettings) -> Any:
    """SPU's `CompilerOptions`."""
    options = libspu.CompilerOptions()
    options.enable_optimize_denominator_with_broadcast = settings.broadcast_reciprocal
    for name, value in settings.spu_fields.items():
        if hasattr(options, name):
            setattr(options, name, value)
    return options


@dataclass(frozen=True)
class Program:
    """A compiled function.

    Attributes:
        executable: of SPU.
        results: of the function, with a `Value` for each array.
    """

    executable: Any
    results: Any


# Executables that are kept: pieces of a pass, for some lengths.
_MOST_COMPILED = 64


class Compiler:
    """Compiles JAX functions of values; equal functions of equal shapes once.

    Args:
        settings: of both parties.
    """

    def __init__(self, settings: PrivateSettings) -> None:
        self._settings = settings
        self._names = (f"v{number}" for number in itertools.count())
        self._compiled: dict[Hashable, tuple[bytes, Any]] = {}

    def new_name(self) -> str:
        """A new name of a value."""
        return next(self._names)

    def program(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Program:
        """A function of values, its results under new names."""
        values, structure = jax.tree_util.tree_flatten(arguments)
        shapes = tuple((v.shape, v.dtype, v.public) for v in values)
        key = (function, structure, shapes)
        if key not in self._compiled:
            if len(self._compiled) == _MOST_COMPILED:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[key] = self._compile(name, function, values, structure)
        code, output = self._compiled[key]
        leaves, output_structure = jax.tree_util.tree_flatten(output)
        results = [Value(self.new_name(), tuple(x.shape), np.dtype(x.dtype)) for x in leaves]
        executable = libspu.Executable(
            name=name,
            input_names=[value.name for value in values],
            output_names=[value.name for value in results],
            code=code,
        )
        return Program(executable, output_structure.unflatten(results))

    def _compile(
        self, name: str, function: Callable[..., Any], values: list[Value], structure: Any
    ) -> tuple[bytes, Any]:
        """The code, and the shapes of the results."""
        shapes = structure.unflatten([jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values])
        secret, public = libspu.Visibility.VIS_SECRET, libspu.Visibility.VIS_PUBLIC

        def named(*args: Any) -> Any:
            return function(*args)

        named.__name__ = re.sub(r"\W", "_", name)
        executable, output = frontend.compile(
            frontend.Kind.JAX,
            named,
            shapes,
            {},
            [value.name for value in values],
            [public if value.public else secret for value in values],
            lambda leaves: [str(place) for place in range(len(leaves))],
            copts=compiler_options(self._settings),
        )
        return executable.code, output


class SpuParty:
    """One party's side of SPU; where it is profiled, the `ProfileLog` counts its link."""

    def __init__(self, link: Any, settings: PrivateSettings, *, profiled: bool) -> None:
        self.runtime = spu.Runtime(link, runtime_config(settings, profiled=profiled))


_LINK = re.compile(
    r"Link details: total send bytes (\d+), recv bytes (\d+), send actions (\d+), "
    r"recv actions (\d+)"
)


class ProfileLog:
    """The counts that SPU writes after each execution, read back from its log.

    SPU's Python interface does not show the link's statistics; its profiling lines do, to the byte.
    The log goes to a temporary folder; it holds names, sizes and times, no values. SPU has one log
    per process.

    Args:
        parties: that write to it. The lines of several do not say whose they are: what all send
            together is known.
    """

    def __init__(self, parties: int = 1) -> None:
        self._parties = parties
        self._folder = contextlib.ExitStack()
        self._path = self._folder.enter_context(temporary_folder()) / "spu.log"
        options = libspu.logging.LogOptions()
        options.enable_console_logger = False
        options.system_log_path = str(self._path)
        options.log_level = libspu.logging.LogLevel.INFO
        options.max_log_file_size = 2**40  # a rotated file would be read as empty
        libspu.logging.setup_logging(options)
        self._read = 0

    def call(self, name: str, seconds: float, party: Party) -> Call:
        """The counts of `party` since the last call.

        Raises:
            RuntimeError: SPU wrote no counts.
        """
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read().decode()
            self._read = file.tell()
        links = _LINK.findall(text)
        if len(links) != self._parties:
            raise RuntimeError(
                f"{name}: SPU wrote counts of {len(links)} links, expected {self._parties}"
            )
        if self._parties > 1:
            return Call(name, seconds, _of_all(links))
        return Call(name, seconds, _traffic(links[0], party))

    def close(self) -> None:
        """Removes the log."""
        self._folder.close()


def _of_all(links: Any) -> Traffic:
    """The traffic of three parties in one process, each taken to send a third."""
    sent, messages = (sum(int(link[place]) for link in links) for place in (0, 2))
    one = sent // 3, messages // 3
    return Traffic(*one[:1] * 2, *one[1:] * 2, helper_bytes=sent - 2 * one[0])


def _traffic(counts: Any, party: Party) -> Traffic:
    sent, received, sent_messages, received_messages = (int(count) for count in counts)
    if party is Party.CLIENT:
        return Traffic(sent, received, sent_messages, received_messages)
    return Traffic(received, sent, received_messages, sent_messages)
