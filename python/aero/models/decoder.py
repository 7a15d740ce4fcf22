"""The decoder of AERO networks as a `transformers` model.

Letters: B batch, T tokens of this call, S tokens with cached ones, H heads, C width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.masking_utils import create_causal_mask
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.generic import can_return_tuple

from aero.models.building import build_block, build_norm, put_in_annealed_parts
from aero.models.configuration import AeroConfig
from aero.models.hugging_face_attention import ATTENTION_NAMES
from aero.models.initialization import PositionEmbedding, initialize_module
from aero.models.outputs import CACHE_FIELD, AeroModelOutput
from aero.models.packed_sequences import is_packed, refuse_crossing, within_window
from aero.nn import Block, KeyValueCache, SequenceContext
from aero.nn.block import normalize
from aero.nn.gates import Gates
from aero.nn.linear import check_computable
from aero.nn.rotary import rotary_tables
from aero.nn.visible_keys import AttentionCall, keys_by_layer
from aero.nn.weight_decay import Scales


class AeroPreTrainedModel(Scales, PreTrainedModel):  # type: ignore[no-untyped-call]
    """The common base of AERO models: configuration, initialization, the attention they accept."""

    config_class = AeroConfig
    base_model_prefix = "transformer"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    _skip_keys_device_placement = ["cache", "past_key_values"]  # noqa: RUF012
    _can_compile_fullgraph = True
    _takes_boolean_masks = True  # of `model_mask`
    config: AeroConfig

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Makes the names of the models with a head known, of users' classes too.

        By the name of the class Trainer decides whether smoothed labels are shifted to the next
        token, and pipelines and servers whether a model generates text.
        """
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        name = cls.__name__
        if issubclass(cls, GenerationMixin):
            key = "aero" if name == "AeroForCausalLM" else f"aero:{name}"
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(key, name)

    def _init_weights(self, module: nn.Module) -> None:
        with torch.no_grad():
            if isinstance(module, AeroModel) and module.negative_slope is not None:
                init.constant_(module.negative_slope, self.config.leaky_slope_init)
            initialize_module(module, self.config)

    def _check_and_adjust_attn_implementation(
        self, attn_implementation: str | None, *args: Any, **kwargs: Any
    ) -> str:
        name = "aero" if attn_implementation is None else attn_implementation
        if name not in ATTENTION_NAMES:
            raise ValueError(
                f"AERO models compute attention with 'aero' or 'aero_entropy', got {name!r}: "
                "another implementation would ignore temperatures and return no entropies"
            )
        return name

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return True


class AeroModel(AeroPreTrainedModel):
    """The decoder without its head."""

    _scale_names = ("negative_slope",)

    def __init__(self, config: AeroConfig) -> None:
        super().__init__(config)
        spec = config.spec
        self.wte = nn.Embedding(spec.vocab_size, spec.width)
        has_learned_positions = spec.rotary_fraction == 0
        sizes = spec.context_length, spec.width
        self.wpe = PositionEmbedding(*sizes) if has_learned_positions else None
        self.drop = nn.Dropout(config.embedding_dropout)
        self.h = nn.ModuleList(build_block(config, index) for index in range(spec.num_layers))
        self.ln_f = build_norm(config, spec.final_norm)
        if config.annealed_from is not None:
            self.ln_f = put_in_annealed_parts(config, self.blocks())
        has_slope = spec.ffn == "leaky_relu_global" and spec.num_pruned_ffns < spec.num_layers
        self.negative_slope = (
            nn.Parameter(torch.full((1,), float(config.leaky_slope_init))) if has_slope else None
        )
        self.gates = None
        if config.gated_parts is not None:
            self.gates = Gates(
                config.gated_parts, spec.num_heads, spec.num_layers, spec.context_length
            )
        self.rotary_dim = int(spec.rotary_fraction * spec.head_dim)
        self.context_length = spec.context_length
        self.gradient_checkpointing = False
        self.post_init()  # type: ignore[no-untyped-call]

    def blocks(self) -> list[Block]:
        """The layers, first to last."""
        return cast("list[Block]", list(self.h))

    def get_input_embeddings(self) -> nn.Embedding:
        """The token embeddings, [V, C]."""
        return self.wte

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replaces the token embeddings."""
        self.wte = cast(nn.Embedding, value)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        past_key_values: Cache | None = None,
        *,
        output_visible_keys: bool = False,
    ) -> AeroModelOutput:
        """Runs the decoder; arguments and errors are those of `AeroForCausalLM.forward`.

        `output_visible_keys` asks for how many keys each row sees, which the penalty needs.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("AeroModel: give either input_ids or inputs_embeds")
        if input_ids is not None and (input_ids.dim() != 2 or input_ids.is_floating_point()):
            raise ValueError(
                "AeroModel: input_ids must be integers [B, T], got "
                f"{str(input_ids.dtype).removeprefix('torch.')} {list(input_ids.shape)}"
            )
        stream = self._embed(input_ids) if inputs_embeds is None else inputs_embeds
        check_computable("AeroModel", stream.dtype)
        if past_key_values is not None:
            if cache is not None:
                raise ValueError("AeroModel: give either cache or past_key_values, its former name")
            cache = past_key_values
        cache = self._cache(cache, use_cache, position_ids)
        given: Any = attention_mask
        if isinstance(given, dict):  # from `generate`, a mask for each kind of layer
            attention_mask = given["full_attention"]
        context = self._context(stream, attention_mask, position_ids, cache)
        if self.config.embedding_scale != 1:
            stream = stream * self.config.embedding_scale
        if self.wpe is not None:
            stream = stream + self._position_embeddings(context, stream.shape[1])
        stream = self.drop(stream)

        hidden_states, entropies = [], []
        for block in self.blocks():
            if output_hidden_states:
                hidden_states.append(stream)
            if self.gradient_checkpointing and self.training:
                stream, entropy = self._gradient_checkpointing_func(block.__call__, stream, context)
            else:
                stream, entropy = block(stream, context)
            entropies.append(entropy)
        stream = normalize(self.ln_f, stream, context.token_mask)
        keys = None
        if output_visible_keys:
            num_keys = context.first_position + stream.shape[1]
            call = AttentionCall(context.mask, num_keys, context.window)
            calls = [call] * len(entropies)
            keys = keys_by_layer("AeroModel", calls, entropies, attention_mask)
        return AeroModelOutput(
            last_hidden_state=stream,
            **{CACHE_FIELD: cache},
            hidden_states=(*hidden_states, stream) if output_hidden_states else None,
            attentions=tuple(entropies) if output_attentions else None,
            entropies=tuple(entropies),
            visible_keys=keys,
        )

    def _embed(self, input_ids: Tensor | None) -> Tensor:
        assert input_ids is not None
        try:
            return self.wte(input_ids)  # type: ignore[no-any-return]
        except IndexError:
            check_token_ids("AeroModel", input_ids, self.wte.weight.shape[0])
            raise

    def _cache(
        self, cache: Cache | None, use_cache: bool | None, position_ids: Tensor | None
    ) -> Cache | None:
        if use_cache is None:
            use_cache = cache is not None or (
                self.config.use_cache and not self.training and not is_packed(position_ids)
            )
        if not use_cache:
            return None
        if self.gradient_checkpointing and self.training:
            raise ValueError(
                "AeroModel: use_cache must be False with gradient checkpointing, which would write "
                "to the cache twice"
            )
        if cache is None:
            return DynamicCache(config=self.config)
        parts = sorted({name for block in self.blocks() for name in block.parts()})
        if parts and not _holds_inputs(cache, len(self.h)):
            raise ValueError(
                f"AeroModel: cache must be made for a network with a {parts[0]}, got one without "
                "room for its inputs; give DynamicCache(config=model.config)"
            )
        return cache

    def _context(
        self,
        stream: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: Cache | None,
    ) -> SequenceContext:
        num_tokens = stream.shape[1]
        # Without positions from the caller no sequence is packed, so the mask may stay implicit.
        mask = None
        if not (attention_mask is None and position_ids is None and cache is None):
            mask = create_causal_mask(
                self.config, stream, attention_mask, cache, position_ids=position_ids
            )
        token_mask = None
        if attention_mask is not None and attention_mask.dim() == 2:
            token_mask = attention_mask[:, -num_tokens:].bool()
        first_position: Any = 0 if cache is None else cache.get_seq_length()
        num_cached = first_position
        if isinstance(first_position, Tensor):  # a cache of fixed size counts on the device
            if position_ids is None:
                position_ids = torch.arange(num_tokens, device=stream.device).unsqueeze(0)
                position_ids = first_position + position_ids
            first_position = 0
        elif position_ids is not None:
            num_keys = first_position + num_tokens
            refuse_crossing("AeroModel", position_ids, cast("Tensor | None", mask), num_keys)
        self._check_positions(position_ids, first_position + num_tokens)
        rotary = None
        if self.rotary_dim:
            ids = position_ids
            if ids is None:
                ids = first_position + torch.arange(num_tokens, device=stream.device).unsqueeze(0)
            rotary = rotary_tables(ids, self.rotary_dim, base=self.config.rotary_base)
        window = self.config.window
        if mask is not None and window:
            mask, window = within_window(cast("Tensor", mask), window, num_cached), 0
        bias = None
        if self.gates is not None:
            num_keys = first_position + num_tokens if mask is None else mask.shape[-1]
            bias = self.gates.on_scores(num_tokens, num_keys, num_cached)
        return SequenceContext(
            mask=cast("Tensor | None", mask),
            token_mask=token_mask,
            position_ids=position_ids,
            first_position=first_position,
            rotary=rotary,
            cache=cast("KeyValueCache | None", cache),
            num_cached=num_cached,
            negative_slope=self.negative_slope,
            gates=self.gates,
            bias=bias,
            window=window,
        )

    def _check_positions(self, position_ids: Tensor | None, length: int) -> None:
        if position_ids is not None:
            # A compiled graph cannot look at values; there the position's lookup fails.
            if torch.compiler.is_compiling() or position_ids.numel() == 0:
                return
            length = int(position_ids.max()) + 1
        if length > self.context_length:
            raise ValueError(
                f"AeroModel: position {length - 1} lies beyond the trained context of "
                f"{self.context_length} tokens"
            )

    def _position_embeddings(self, context: SequenceContext, num_tokens: int) -> Tensor:
        assert self.wpe is not None
        if context.position_ids is not None:
            return self.wpe(context.position_ids)  # type: ignore[no-any-return]
        first = context.first_position
        return self.wpe.weight[first : first + num_tokens]


def _holds_inputs(cache: Cache, num_layers: int) -> bool:
    """Returns whether a cache keeps the last inputs of the parts of every layer."""
    layers = cache.layers
    return len(layers) >= num_layers and all(hasattr(one, "update_conv_state") for one in layers)


def check_token_ids(model: str, token_ids: Tensor, vocabulary: int) -> None:
    """Names ids that have no embedding; torch's own IndexError names neither them nor the limit.

    That reads all ids, so networks ask only once torch has refused them.

    Raises:
        ValueError: an id below 0 or not below `vocabulary`.
    """
    if token_ids.numel() == 0:
        return
    lowest, highest = (int(id_) for id_ in token_ids.aminmax())
    if lowest < 0 or highest >= vocabulary:
        raise ValueError(
            f"{model}: input_ids must be from 0 to {vocabulary - 1}, the vocabulary, "
            f"got {lowest if lowest < 0 else highest}"
        ) from None
