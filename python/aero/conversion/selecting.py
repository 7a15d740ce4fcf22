"""Chooses parts of a network by their private bytes while it trains.

    network = with_gates(model, ["ffns", "heads"])       # the same outputs
    price = GatedPrice(network.config.spec, ["ffns", "heads"])
    ...            # train with the loss + weight * price.share(gates), gates kept within [0, 1]
    network = selected(network)                          # once all gates are 0 or 1

As in Selective Network Linearization (Cho et al., ICML 2022, arXiv 2202.02340) the price of what a
gate keeps joins the loss, linearly in the gates as a lasso, and gates at 0 leave their part out.
There every ReLU counts the same; here each part has its bytes. The gates are those that a
configuration can say: of heads that all layers have, of FFNs, of the one activation, and of the
window that all layers have. A window saves bytes where attention goes by blocks of queries.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from aero.architecture import ArchitectureSpec
from aero.conversion.annealing import keep_discrepancies, like
from aero.models import AeroForCausalLM
from aero.models.configuration import check_gated_parts
from aero.mpc import simulate
from aero.nn.gates import GATED_PARTS, window_step

# Of what a network cannot be without, one stays.
_NEVER_NONE = ("heads", "windows")
_BLOCK = 64


class GatedPrice:
    """The private bytes of a network as a function of its gates.

    At gates that are 0 or 1 it is what `aero.mpc.simulate` says of the network without the parts
    at 0, to the byte. Between, it is linear in the number of heads, of FFNs, in the activation and
    in the steps of the window, so that every gate has a gradient. Fewer than one head count as one.
    With gates on windows, attention is priced by blocks of `attention_block` queries. The first
    steps of narrowing may save nothing; their gradient is the largest mean saving per step that
    further ones bring.

    Args:
        spec: the network with all its parts.
        parts: those of `aero.nn.gates.GATED_PARTS` that have gates.
        stack: as in `aero.mpc.simulate`.

    Raises:
        ValueError: an unknown stack, or one that has no blocks of queries, with gates on windows.
    """

    def __init__(
        self, spec: ArchitectureSpec, parts: Collection[str], stack: str = "spu-2024"
    ) -> None:
        ffns = spec.num_layers - spec.num_pruned_ffns
        step = window_step(spec.context_length)
        windows = -(-spec.context_length // step)
        counts = {"heads": spec.num_heads, "ffns": ffns, "activation": 1, "windows": windows}
        fields: Any = {"attention_block": block_of(spec)} if "windows" in parts else {}
        # By part: the least count and the largest; one that has no gate stays at its largest.
        self._ends = [
            (counts[part] if part not in parts else int(part in _NEVER_NONE), counts[part])
            for part in GATED_PARTS
        ]
        ranges = [range(least, most + 1) for least, most in self._ends]
        prices = [
            simulate(spec_with(spec, *kept), stack=stack, **fields).comm_bytes
            for kept in itertools.product(*ranges)
        ]
        # float64 holds whole numbers up to 9e15 exactly.
        self._prices = torch.tensor(prices, dtype=torch.float64).view([len(r) for r in ranges])
        self.whole = float(self._prices.flatten()[-1])

    def bytes_of(self, gates: Mapping[str, Tensor]) -> Tensor:
        """The estimate, 0-D, float64.

        Args:
            gates: by part, from 0 to 1, as `aero.nn.gates.Gates.by_name` returns them.
        """
        prices = self._prices.to(next(iter(gates.values())).device)
        for part, (least, most) in zip(GATED_PARTS, self._ends, strict=True):
            if least == most:  # no gate, or the one head that stays
                prices = prices[0]
                continue
            count = _count(part, gates[part].double()).clamp(min=least, max=most)
            below = min(int(count.nan_to_num(least)), most - 1)  # a NaN stays one in the price
            if part == "windows":
                return _of_windows(prices, count - least, below - least)
            prices = torch.lerp(prices[below - least], prices[below - least + 1], count - below)
        return prices

    def share(self, gates: Mapping[str, Tensor]) -> Tensor:
        """The estimate over the bytes of the whole network, 0-D, float32: what joins a loss."""
        return (self.bytes_of(gates) / self.whole).float()


def _count(part: str, gates: Tensor) -> Tensor:
    """How many of a part are kept; the first step of a window is, and others up to a gate at 0."""
    return 1 + gates.cumprod(0).sum() if part == "windows" else gates.sum()


def _of_windows(prices: Tensor, count: Tensor, below: int) -> Tensor:
    """The price between two windows, with the gradient that `GatedPrice` describes.

    Args:
        prices: of all windows, the narrowest first.
        count: steps beyond the narrowest.
        below: its whole part, of the largest count one less.
    """
    price = torch.lerp(prices[below], prices[below + 1], (count - below).detach())
    above = below + 1
    steps = above - torch.arange(above, device=prices.device)
    slope = ((prices[above] - prices[:above]) / steps).max().detach()
    return price + slope * (count - count.detach())


def block_of(spec: ArchitectureSpec) -> int:
    """The `attention_block` with which windows are priced: two blocks at least."""
    return max(1, min(_BLOCK, spec.context_length // 2))


def spec_with(
    spec: ArchitectureSpec, heads: int, ffns: int, activation: int, windows: int
) -> ArchitectureSpec:
    """The network with so many of its heads and FFNs, with its activation (1) or without (0).

    `windows` counts the steps of the window; with all of them the network has its own.
    """
    seen = windows * window_step(spec.context_length)
    return spec.replace(
        window=seen if seen < spec.context_length else spec.window,
        num_heads=heads,
        head_dim=spec.head_dim,
        num_pruned_ffns=spec.num_layers - ffns,
        ffn=spec.ffn if activation else "linear",
    )


def with_gates(model: AeroForCausalLM, parts: Collection[str]) -> AeroForCausalLM:
    """Returns the same network with gates at 1; its outputs are those of `model`.

    Args:
        model: left unchanged.
        parts: some of `aero.nn.gates.GATED_PARTS`.

    Raises:
        ValueError: the network cannot have these gates, or has some.
    """
    if model.config.gated_parts is not None:
        raise ValueError("with_gates: the network must have no gates yet, got one that has")
    config = copy.deepcopy(model.config)
    config.gated_parts = [*parts]
    check_gated_parts(config)
    network = AeroForCausalLM(config)
    network.load_state_dict(model.state_dict(), strict=False)  # all but the gates
    return like(network, model)


def selected(model: AeroForCausalLM) -> AeroForCausalLM:
    """Returns the network without gates and without the parts whose gates are 0.

    Args:
        model: one whose gates are all 0 or 1; left unchanged.

    Returns:
        A network of the label and sizes that are left, with the outputs of `model` up to rounding.

    Raises:
        ValueError: no gates, one between 0 and 1, or none of the heads left.
    """
    gates = model.transformer.gates
    if gates is None:
        raise ValueError("selected: the network must have gates, got one without")
    kept: dict[str, list[int]] = {}
    for name, values in gates.by_name().items():
        found = values.detach().tolist()
        between = [value for value in found if value not in (0.0, 1.0)]
        if between:
            raise ValueError(
                f"selected: gates must be 0 or 1, got {between[0]:g} in {name}; train to the end"
            )
        kept[name] = [index for index, value in enumerate(found) if value]
        if name == "windows":
            kept[name] = [index for index, number in enumerate(kept[name]) if number == index]
    if kept.get("heads") == []:
        raise ValueError("selected: one head must be left, got gates of 0 for all")
    network = AeroForCausalLM(_selected_config(model, kept))
    network.load_state_dict(_selected_weights(model, network, kept.get("heads")))
    keep_discrepancies(model, network)
    return like(network, model)


def _selected_config(model: AeroForCausalLM, kept: Mapping[str, list[int]]) -> Any:
    config, spec = copy.deepcopy(model.config), model.config.spec
    layers = kept.get("ffns")
    found = spec_with(
        spec,
        len(kept.get("heads", range(spec.num_heads))),
        spec.num_layers - spec.num_pruned_ffns if layers is None else len(layers),
        len(kept.get("activation", [0])),
        1 + len(kept.get("windows", range(spec.context_length))),
    )
    config.gated_parts = None
    config.update_spec(found)
    if layers is not None:
        pruned = [layer for layer in range(spec.num_layers) if layer not in layers]
        config.pruned_ffn_layers = pruned or None
    step = f"selected (exact): {spec.label} with {_words(spec)} becomes {found.label} with "
    config.conversion_steps = [*(config.conversion_steps or []), step + _words(found)]
    return config


def _words(spec: ArchitectureSpec) -> str:
    ffns = spec.num_layers - spec.num_pruned_ffns
    window = f" and a window of {spec.window} tokens" if spec.window else ""
    return f"{spec.num_heads} heads and {ffns} FFNs{window}"


def _selected_weights(
    model: AeroForCausalLM, network: AeroForCausalLM, heads: list[int] | None
) -> dict[str, Tensor]:
    """The weights that are left; those of heads are rows of c_attn and columns of c_proj."""
    spec, state = model.config.spec, model.state_dict()
    channels = torch.arange(spec.num_heads * spec.head_dim).view(spec.num_heads, -1)
    if heads is not None:
        channels = channels[heads]
    inner = channels.flatten().to(model.device)
    rows = torch.cat([inner + part * spec.num_heads * spec.head_dim for part in range(3)])
    found = {}
    for name in network.state_dict():
        value = state[name]
        if ".attn.c_attn." in name:
            value = value[rows]
        elif name.endswith(".attn.c_proj.weight"):
            value = value[:, inner]
        found[name] = value
    return found
