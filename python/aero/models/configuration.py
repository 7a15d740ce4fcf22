"""Configuration of AERO networks for `transformers`."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Collection
from dataclasses import fields
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from aero.architecture import ArchitectureSpec
from aero.models.head_penalty import PUBLISHED_TOKENS
from aero.nn.gates import GATED_PARTS, window_step
from aero.nn.parts import BLOCK_PARTS

# Field of ArchitectureSpec -> key here. `transformers` would take a key `temperature` for that of
# sampling, so the attention's has a longer name.
_ARCHITECTURE_KEYS = {
    name: {"temperature": "attention_temperature"}.get(name, name)
    for name in ArchitectureSpec.from_label("SM", model="mini").to_dict()
}

# Keys that `transformers` itself writes to or passes for every configuration, besides private ones
# with a leading underscore.
_FOREIGN_KEYS = frozenset(
    {"attn_implementation", "auto_map", "experts_implementation", "model_type", "name_or_path"}
    | {"num_labels", "output_attentions", "torch_dtype"}
)

_CHOICES = {
    "max_entropy": ("log_context", "log_visible"),
    "entropy_reduction": ("position_sum", "query_mean"),
    "entropy_strengths": ("equal", "learned"),
    "entropy_thresholds": ("layer", "shared"),
    "temperature_parametrization": ("identity", "log"),
    "position_start": ("weights", "embeddings"),
    "trainable_scales": ("alpha+beta", "alpha", "beta", "none"),
    "norm_statistics": ("process", "synchronized"),
    "gelu_approximation": ("tanh", "none"),
}


_ANY, _POSITIVE = -math.inf, sys.float_info.min
_NUMBERS = {  # smallest value and how an error names the range
    "entropy_weight": (0, "a number from 0"),
    "entropy_tokens": (1, "a number from 1"),
    "tolerance_margin": (0, "a number from 0"),
    "threshold_init": (_ANY, "a number"),
    "temperature_init": (_ANY, "a number that is not 0"),
    "leaky_slope_init": (_ANY, "a number"),
    "layer_norm_epsilon": (_POSITIVE, "a number above 0"),
    "rotary_base": (_POSITIVE, "a number above 0"),
    "embedding_scale": (_ANY, "a number"),
    "initializer_range": (0, "a number from 0"),
    "embedding_dropout": (0, "a number from 0 to below 1"),
    "residual_dropout": (0, "a number from 0 to below 1"),
    "attention_dropout": (0, "a number from 0 to below 1"),
}


class AeroConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """An AERO network's architecture, and the training of its own parts.

    The fields of `ArchitectureSpec` (`num_layers`, `width`, `norm`, `ffn`, ...) are attributes of
    the configuration and entries of its `config.json`; `spec` is the whole of them. Its
    `temperature` is called `attention_temperature` here. The usual names of `transformers`
    (`num_hidden_layers`, `hidden_size`, ...) are aliases.

    Args:
        entropy_weight: lambda, weight of the entropy penalty in the training loss.
        entropy_tokens: with ``"position_sum"``, the predicted tokens that lambda belongs to. The
            penalty is the sum over this many, whatever a call holds, so that its balance with the
            language-model loss is the same for every batch, accumulation and number of processes.
            The default is the paper's batch, 128 windows of 128 tokens.
        tolerance_margin: gamma, half width of the band without penalty, a fraction of the maximum.
        max_entropy: ``"log_context"``, log T for every row, or ``"log_visible"``, log of the number
            of keys the row sees.
        entropy_reduction: ``"position_sum"`` or ``"query_mean"``, see
            `aero.ops.entropy_regularization`.
        entropy_strengths: ``"equal"``, or ``"learned"``: a strength per head, of mean 1, see
            `aero.models.head_penalty`.
        entropy_thresholds: ``"layer"``, thresholds for the heads of each layer, or ``"shared"``:
            those of the first layer hold in all, as in the code of arXiv 2501.03489. The others are
            there and do not learn.
        threshold_init: start of the learned thresholds, a fraction of the maximum.
        temperature_init: start of the learned temperatures.
        temperature_parametrization: ``"identity"`` stores t, ``"log"`` stores log t.
        trainable_scales: which of the scaled FFN's alpha and beta are learned: ``"alpha+beta"``,
            ``"alpha"``, ``"beta"`` or ``"none"``.
        leaky_slope_init: start of the learned leaky ReLU slopes.
        gelu_approximation: ``"tanh"`` (GPT-2) or ``"none"``, the exact GELU (Pythia, nanoGPT), as
            in `torch.nn.functional.gelu`.
        pruned_ffn_layers: the layers without FFN, from 0, in ascending order, `num_pruned_ffns` of
            them; None for the deepest ones. Counts and costs of `spec` hold for any choice, layer
            by layer as if they were the deepest.
        conversion_steps: the steps of `aero.convert` that led to this network, in order, each
            with the word exact or inexact; None for networks that were not converted.
        annealed_from: of a network in the middle of an annealing, `norm`, `final_norm` and `ffn` of
            its origin (`aero.conversion.begin_annealing`); `spec` is the network after it.
        gated_parts: of a network whose training chooses parts by their private bytes, what has
            gates of `aero.nn.gates.GATED_PARTS`; `spec` is the network with all of them.
        norm_statistics: foldable norm under data parallelism: ``"process"``, each process its own
            statistics (`DistributedDataParallel` keeps the running ones of the first process), or
            ``"synchronized"``, those of all processes together.
        layer_norm_epsilon: of LayerNorms.
        rotary_base: of rotary positions.
        embedding_scale: factor of the token embeddings (sqrt(width) in Languini).
        position_start: size of learned positions at the start: ``"weights"``, initializer_range, or
            ``"embeddings"``, that times `embedding_scale`, as large as the scaled token embeddings.
        embedding_dropout: share of the embedded stream that training drops.
        residual_dropout: share that training drops of what attention and FFN add to the stream.
        attention_dropout: share of the attention weights that training drops; entropies are those
            without it.
        initializer_range: standard deviation of initial weights. Residual projections (`c_proj` of
            attention and FFN, and the fused FFN) start at initializer_range / sqrt(2 L), in both
            model families.
        use_cache: keep keys and values in evaluation calls.
        bos_token_id: first token of a sequence.
        eos_token_id: last token of a sequence.
        pad_token_id: padding token.
        **kwargs: fields of `ArchitectureSpec`; those not given are the preset ``mini`` of
            ``SM+LN+G``.

    Raises:
        ValueError: unknown key (with the nearest known one), or a value that is not allowed.

    Example:
        >>> from aero import AeroConfig
        >>> config = AeroConfig.from_label("EReg(SM(t)+ScFuFFN)", model="tiny", num_heads=4)
        >>> config.spec.label, config.head_dim, config.hidden_size
        ('EReg(SM(t)+ScFuFFN)', 8, 32)
    """

    model_type = "aero"
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "cache",
        "past_key_values",
        "lm_loss",
        "entropy_loss",
        "penalty_nats",
        "entropies",
        "attentions",
        "hidden_states",
    ]
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "width",
        "intermediate_size": "hidden_width",
        "max_position_embeddings": "context_length",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "tie_word_embeddings": "tied_embeddings",
    }

    entropy_weight: float | int = 1e-5
    entropy_tokens: int = PUBLISHED_TOKENS
    tolerance_margin: float | int = 0.1
    max_entropy: str = "log_context"
    entropy_reduction: str = "position_sum"
    entropy_strengths: str = "equal"
    entropy_thresholds: str = "layer"
    threshold_init: float | int = 0.5
    temperature_init: float | int = 1e-2
    temperature_parametrization: str = "identity"
    trainable_scales: str = "alpha+beta"
    leaky_slope_init: float | int = 0.01
    gelu_approximation: str = "tanh"
    pruned_ffn_layers: list[int] | None = None
    conversion_steps: list[str] | None = None
    annealed_from: dict[str, str] | None = None
    gated_parts: list[str] | None = None
    norm_statistics: str = "process"
    layer_norm_epsilon: float = 1e-5
    rotary_base: float | int = 10000.0
    embedding_scale: float | int = 1.0
    position_start: str = "weights"
    embedding_dropout: float | int = 0.0
    residual_dropout: float | int = 0.0
    attention_dropout: float | int = 0.0
    initializer_range: float = 0.02
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Sorts architecture fields from the rest and checks all of them."""
        kwargs = _without_aliases(kwargs)
        architecture = {
            name: kwargs.pop(key) for name, key in _ARCHITECTURE_KEYS.items() if key in kwargs
        }
        for key in kwargs:
            _check_known(key)
        if kwargs.get("output_attentions"):
            raise ValueError(
                "AeroConfig: output_attentions belongs to calls; outputs.entropies is always "
                "there, and a call with output_attentions=True repeats it as outputs.attentions"
            )
        self._check_values()
        if len(architecture) == len(_ARCHITECTURE_KEYS):
            spec = ArchitectureSpec.from_dict(architecture)
        else:
            spec = ArchitectureSpec.from_label("SM+LN+G", model="mini").replace(**architecture)
        self.update_spec(spec)
        self._check_pruned_layers()
        check_gated_parts(self)
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    def _check_values(self) -> None:
        def refuse(key: str, expected: str) -> None:
            raise ValueError(f"AeroConfig: {key} must be {expected}, got {getattr(self, key)!r}")

        for key, allowed in _CHOICES.items():
            if getattr(self, key) not in allowed:
                refuse(key, f"one of {', '.join(allowed)}")
        for key, (smallest, expected) in _NUMBERS.items():
            value = getattr(self, key)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            has_end = expected.endswith("below 1")
            if not is_number or not value >= smallest or (has_end and value >= 1):
                refuse(key, expected)
        if self.temperature_init == 0:
            refuse("temperature_init", _NUMBERS["temperature_init"][1])

    def _check_pruned_layers(self) -> None:
        layers, spec = self.pruned_ffn_layers, self.spec
        if layers is None:
            return
        allowed = range(spec.num_layers)
        is_ascending = list(layers) == sorted(set(layers) & set(allowed))
        if not is_ascending or len(layers) != spec.num_pruned_ffns:
            raise ValueError(
                f"AeroConfig: pruned_ffn_layers must be num_pruned_ffns = {spec.num_pruned_ffns} "
                f"ascending layers from 0 to {spec.num_layers - 1}, got {layers}"
            )

    @property
    def layers_without_ffn(self) -> list[int]:
        """The layers whose FFN is pruned, from 0, in ascending order."""
        if self.pruned_ffn_layers is not None:
            return list(self.pruned_ffn_layers)
        num_layers = self.spec.num_layers
        return list(range(num_layers - self.spec.num_pruned_ffns, num_layers))

    @property
    def layer_types(self) -> list[str]:
        """Has caches of `transformers` hold the last inputs of parts; there with parts only.

        Raises:
            AttributeError: the network has none, and caches hold keys and values alone.
        """
        if all(getattr(self, name) == "none" for name in BLOCK_PARTS):
            raise AttributeError(
                f"AeroConfig: layer_types is of networks with a {' or '.join(BLOCK_PARTS)}"
            )
        return ["hybrid"] * self.num_layers

    @classmethod
    def from_spec(cls, spec: ArchitectureSpec, **training_fields: Any) -> AeroConfig:
        """Returns the configuration of a network.

        Args:
            spec: the network.
            **training_fields: fields of this class.
        """
        architecture: dict[str, Any] = {
            _ARCHITECTURE_KEYS[name]: value for name, value in spec.to_dict().items()
        }
        return cls(**architecture, **training_fields)

    @classmethod
    def from_label(cls, label: str, *, model: str = "mini", **overrides: Any) -> AeroConfig:
        """Returns the configuration of a labelled network.

        Args:
            label: such as ``"SM+ScFuFFN"``.
            model: name of a size preset (`ArchitectureSpec.preset_names`).
            **overrides: sizes and flags of `ArchitectureSpec` or fields of this class.
        """
        overrides = _without_aliases(overrides)
        sizes = {name: overrides.pop(name) for name in _ARCHITECTURE_KEYS if name in overrides}
        return cls.from_spec(ArchitectureSpec.from_label(label, model=model, **sizes), **overrides)

    def update_spec(self, spec: ArchitectureSpec) -> None:
        """Takes over all fields of `spec`; for configurations that no model was built from yet."""
        for name, value in spec.to_dict().items():
            setattr(self, _ARCHITECTURE_KEYS[name], value)

    @property
    def spec(self) -> ArchitectureSpec:
        """The architecture, from the configuration's present attributes."""
        return ArchitectureSpec.from_dict(
            {name: getattr(self, key) for name, key in _ARCHITECTURE_KEYS.items()}
        )


def check_gated_parts(config: AeroConfig) -> None:
    """Raises `ValueError` if the network of a configuration cannot have its gates."""
    parts = config.gated_parts
    if parts is None:
        return
    if not parts or sorted(set(parts)) != sorted(parts) or not {*parts} <= {*GATED_PARTS}:
        raise ValueError(
            f"AeroConfig: gated_parts must be one or more of {', '.join(GATED_PARTS)}, each "
            f"once, got {parts}"
        )
    reason = gate_obstacle(config.spec, parts)
    if reason is None and config.annealed_from is not None:
        reason = "a network without annealed parts; anneal first, then choose"
    if reason is not None:
        raise ValueError(
            f"AeroConfig: gated_parts {', '.join(parts)} need {reason}, got {config.spec.label}"
        )


def gate_obstacle(spec: ArchitectureSpec, parts: Collection[str]) -> str | None:
    """The need of gates that a network does not meet, in words; None where it meets all."""
    if spec.shaped_attention or "norm" in spec.ffn or "qk" in spec.normalized_layers:
        return "a network without shaped attention and without normalized weights"
    if "heads" in parts and (spec.temperature != "none" or spec.entropy_regularized):
        return "heads without temperatures and entropy penalty, which belong to single heads"
    if "ffns" in parts and spec.num_pruned_ffns:
        return "a network with all its FFNs; leave _iN out of the label"
    if "activation" in parts and spec.ffn not in ("gelu", "relu"):
        return "the activation gelu or relu"
    step, taps = window_step(spec.context_length), spec.convolution_taps
    if "windows" in parts and (spec.window or not taps <= step < spec.context_length):
        return "a network without a window, whose context has eight times the taps or more"
    return None


def _without_aliases(arguments: dict[str, Any]) -> dict[str, Any]:
    renamed: dict[str, Any] = {}
    for key, value in arguments.items():
        name = AeroConfig.attribute_map.get(key, key)
        if name != key and name in arguments:
            raise ValueError(f"AeroConfig: {name} is given twice, also as {key}")
        renamed[name] = value
    return renamed


def _check_known(key: str) -> None:
    own = {field.name for field in fields(AeroConfig)}
    if key in _FOREIGN_KEYS or key in own or key.startswith("_"):
        return
    known = sorted({*own, *_ARCHITECTURE_KEYS.values(), *AeroConfig.attribute_map})
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
    raise ValueError(f"AeroConfig: unknown key {key!r}; did you mean {nearest!r}?")
