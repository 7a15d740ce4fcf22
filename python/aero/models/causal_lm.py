"""AERO language models: decoder, head, loss and entropy penalty.

Letters: B batch, T tokens of this call, S tokens with cached ones, H heads, C width, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial
from transformers import Cache, GenerationMixin
from transformers.utils.generic import can_return_tuple

from aero.models.configuration import AeroConfig
from aero.models.decoder import AeroModel, AeroPreTrainedModel, check_token_ids
from aero.models.foreign_networks import carried_over, foreign_model_type, load_foreign_network
from aero.models.head_penalty import penalty_in_loss, strengths_of
from aero.models.loss import IGNORED, head_loss, next_token_loss
from aero.models.outputs import CACHE_FIELD, AeroCausalLMOutput, AeroModelOutput
from aero.nn import FoldableNorm
from aero.nn.linear import Linear, embed_tied, is_plain, linear


class AeroForCausalLM(AeroPreTrainedModel, GenerationMixin):
    """An AERO language model: decoder, head, loss and entropy penalty.

    Args:
        config: the network and the training of its own parts.

    Example:
        >>> from aero import AeroConfig, AeroForCausalLM
        >>> import torch
        >>> model = AeroForCausalLM(AeroConfig.from_label("EReg(SM(t)+ScFuFFN)", model="tiny"))
        >>> tokens = torch.randint(256, (2, 32))
        >>> output = model(tokens, labels=tokens)
        >>> output.logits.shape, output.loss.dim(), output.entropy_loss.dim()
        (torch.Size([2, 32, 256]), 0, 0)
    """

    _scale_names = ("strength_bias",)

    accepts_loss_kwargs = True
    _tied_weights_keys = {"lm_head.weight": "transformer.wte.weight"}  # noqa: RUF012

    def __init__(self, config: AeroConfig) -> None:
        super().__init__(config)
        # `transformers` goes by the name of the class, which a user's class does not share; without
        # it Trainer would count tokens that nothing predicts.
        self.loss_type = "ForCausalLM"
        self.transformer = AeroModel(config)
        spec = config.spec
        self.lm_head = Linear(spec.width, spec.vocab_size, bias=False)
        self.is_entropy_regularized = spec.entropy_regularized
        self.strength_bias: nn.Parameter | None = None
        if spec.entropy_regularized and config.entropy_strengths == "learned":
            self.strength_bias = nn.Parameter(torch.zeros(spec.num_layers, spec.num_heads))
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any
    ) -> AeroForCausalLM:
        """Loads a saved network, or one of GPT-2 or Pythia as an AERO network.

        Args:
            pretrained_model_name_or_path: a folder or a name on the hub, whose `config.json` says
                ``aero``, ``gpt2`` or ``gpt_neox``.
            *model_args: as of `transformers`.
            **kwargs: as of `transformers`.
        """
        path = pretrained_model_name_or_path
        if path is not None and kwargs.get("config") is None:
            model_type = foreign_model_type(path, **kwargs)
            if model_type is not None:
                return load_foreign_network(
                    AeroForCausalLM, model_type, path, *model_args, **kwargs
                )
        network: AeroForCausalLM = super().from_pretrained(path, *model_args, **kwargs)
        return network

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor | None = 0,
        num_items_in_batch: int | Tensor | None = None,
        past_key_values: Cache | None = None,
    ) -> AeroCausalLMOutput:
        """Returns logits, and with labels the losses.

        In training `loss` is ``lm_loss + penalty_nats``, in evaluation `lm_loss`. Both parts are
        divided by the same number of predicted tokens, this call's or `num_items_in_batch`. Where
        that is 0, both are 0 in training, `lm_loss` is NaN in evaluation, and gradients are 0.

        Args:
            input_ids: [B, T] token ids; or give `inputs_embeds`.
            attention_mask: [B, S], 0 for padding, or a boolean [B, 1, T, S], True where visible.
                Padding tokens enter no statistic and no penalty.
            position_ids: [B, T] or [1, T]; default: consecutive, after the cached tokens. Without
                mask and cache, a position 0 begins another sequence, which sees none before it.
            cache: keys and values of earlier calls.
            inputs_embeds: [B, T, C] in place of token embeddings, before `embedding_scale`.
            labels: [B, T], the tokens themselves (they are shifted here), -100 where not counted.
            use_cache: return a cache; default: as the configuration says, never with labels, in
                training or of packed sequences.
            output_attentions: repeat the entropies as `attentions`.
            output_hidden_states: return every layer's output.
            logits_to_keep: compute logits for the last so many tokens, or at these indices; 0
                means all. None, with labels, returns no logits; on the CPU never more than 2^22
                are then in memory, and gradients are computed with the loss.
            num_items_in_batch: predicted tokens of the whole optimizer step (all micro-batches
                and processes); then `lm_loss` is the sum over this call divided by it.
            past_key_values: `cache` under its name before transformers 5.24.

        Raises:
            ValueError: a sequence or position beyond the context length, neither or both of
                `input_ids` and `inputs_embeds`, a cache under both names, ids or labels beyond the
                vocabulary (on a GPU and in a compiled graph torch's error), a cache together with
                gradient checkpointing, packed sequences that would see each other, weights in
                float8, neither logits nor labels, or a training step whose labels were taken out of
                the call, and the penalty with them.
        """
        if labels is None and num_items_in_batch is not None:
            self._refuse_losing_the_penalty()
        if labels is None and logits_to_keep is None:
            raise ValueError(
                "AeroForCausalLM: logits_to_keep must be given without labels, got None"
            )
        if use_cache is None and labels is not None:
            use_cache = False  # a loss needs none, and filling it copies every key and value
        head_weight = None
        if input_ids is not None and inputs_embeds is None and self._shares_gradient(labels):
            inputs_embeds, head_weight = self._embed_tied(input_ids)
            input_ids = None
        outputs: AeroModelOutput = self.transformer(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            output_visible_keys=labels is not None and self.is_entropy_regularized,
            return_dict=True,
        )
        hidden = outputs.last_hidden_state
        assert hidden is not None and outputs.entropies is not None
        if isinstance(logits_to_keep, Tensor):
            hidden = hidden[:, logits_to_keep]
        elif logits_to_keep:
            hidden = hidden[:, -logits_to_keep:]
        if logits_to_keep is None and head_weight is None and is_plain(self.lm_head, Linear):
            head_weight = self.lm_head.weight
        logits = loss = lm_loss = entropy_loss = penalty_nats = None
        if logits_to_keep is not None or head_weight is None:
            logits = self.lm_head(hidden) if head_weight is None else linear(hidden, head_weight)

        if labels is not None:
            of_nothing = 0.0 if self.training else math.nan
            rule: Any = {"num_items_in_batch": num_items_in_batch, "of_nothing": of_nothing}
            if logits is None:
                loss = lm_loss = head_loss(hidden, cast(Tensor, head_weight), labels, **rule)
            else:
                loss = lm_loss = next_token_loss(logits, labels, **rule)
            if self.is_entropy_regularized:
                entropy_loss, penalty_nats = penalty_in_loss(
                    outputs.entropies,
                    self._thresholds(),
                    labels[:, 1:].ne(IGNORED).sum(),
                    num_items_in_batch,
                    **self._penalty_rule(),
                    visible_keys=outputs.visible_keys,
                )
                if self.training:
                    loss = lm_loss + penalty_nats
        return AeroCausalLMOutput(
            loss=loss,
            lm_loss=lm_loss,
            entropy_loss=entropy_loss,
            penalty_nats=penalty_nats,
            logits=None if logits_to_keep is None else logits,
            **{CACHE_FIELD: getattr(outputs, CACHE_FIELD)},
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            entropies=outputs.entropies,
        )

    def head_temperatures(self) -> list[npt.NDArray[np.float32]] | None:
        """Returns the temperatures of every layer, L arrays [H, T]; None for networks without."""
        spec = self.config.spec
        if spec.temperature == "none":
            return None
        shape = (spec.num_heads, spec.context_length)
        temperatures = []
        for block in self.transformer.blocks():
            assert block.attn.temperature is not None
            values = block.attn.temperature().detach().float().cpu().numpy()
            if values.ndim == 1:
                values = values[:, None]
            temperatures.append(np.broadcast_to(values, shape).copy())
        return temperatures

    def head_thresholds(self) -> npt.NDArray[np.float32] | None:
        """Returns learned thresholds as fractions of the largest entropy, [L, H]; None without."""
        if not self.is_entropy_regularized:
            return None
        return self._thresholds().detach().float().cpu().numpy()

    def head_strengths(self) -> npt.NDArray[np.float32] | None:
        """Returns the penalty's strengths by head, of mean 1, [L, H]; None where all are equal."""
        if self.strength_bias is None:
            return None
        strengths: npt.NDArray[np.float32] = (
            strengths_of(whole(self.strength_bias).detach().float()).cpu().numpy()
        )
        return strengths

    def learned_scalars(self) -> dict[str, list[float]]:
        """Returns the learned numbers of the feed-forward networks, by name.

        Returns:
            `alpha` and `beta` of scaled FFNs (AERO, Eq. 6) and `negative_slope` of leaky ReLUs, a
            number per layer (NaN where the FFN is pruned), or one where the network shares it;
            gates as `gate_heads` and so on; only the names that the network has.

        Example:
            >>> from aero import AeroConfig, AeroForCausalLM
            >>> model = AeroForCausalLM(AeroConfig.from_label("SM+ScFFN_i1", model="tiny"))
            >>> model.learned_scalars()
            {'alpha': [1.0, nan], 'beta': [1.0, nan]}
        """
        shared = self.transformer.negative_slope
        found = {} if shared is None else {"negative_slope": [shared.item()]}
        blocks = self.transformer.blocks()
        for name in ("alpha", "beta", "negative_slope"):
            values = [getattr(block.mlp, name, None) for block in blocks]
            if any(value is not None for value in values):
                found[name] = [float("nan") if value is None else value.item() for value in values]
        gates = {} if self.transformer.gates is None else self.transformer.gates.by_name()
        return found | {f"gate_{name}": gate.tolist() for name, gate in gates.items()}

    def norm_discrepancy(self) -> float | None:
        """Returns how far the last batch was from the running statistics of foldable norms.

        Returns:
            The mean of ``|sqrt(v_batch / v_running) - 1|`` over all of them; None for networks
            without foldable norm.
        """
        norms = [module for module in self.modules() if isinstance(module, FoldableNorm)]
        if not norms:
            return None
        return float(torch.cat([norm.discrepancy for norm in norms]).mean())

    def _refuse_losing_the_penalty(self) -> None:
        """Refuses a step whose tokens Trainer has counted for a loss computed from logits."""
        if self.training and self.is_entropy_regularized:
            raise ValueError(
                "AeroForCausalLM: the entropy penalty of a training step needs its labels in the "
                "call, got num_items_in_batch alone (transformers.Trainer takes labels out for "
                "label_smoothing_factor and compute_loss_func); smooth labels with "
                "aero.train.AeroTrainer, which keeps the penalty, or take a label without EReg"
            )

    def _embed_tied(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.lm_head.weight
        try:
            return embed_tied(input_ids, weight)
        except IndexError:
            check_token_ids("AeroModel", input_ids, weight.shape[0])
            raise

    def _shares_gradient(self, labels: Tensor | None) -> bool:
        """True if embeddings and head may run as `embed_tied`: one weight, plain modules."""
        embeddings, head = self.transformer.wte, self.lm_head
        weight = head.weight
        return (
            labels is not None
            and weight is embeddings.weight
            and torch.is_grad_enabled()
            and weight.requires_grad
            and weight.device.type == "cpu"
            and not torch.compiler.is_compiling()
            and not isinstance(weight, DTensor)
            and is_plain(embeddings, nn.Embedding)
            and is_plain(head, Linear)
        )

    def _thresholds(self) -> Tensor:
        thresholds = [block.attn.entropy_threshold for block in self.transformer.blocks()]
        own = torch.stack([whole(cast(Tensor, threshold)) for threshold in thresholds])
        # Of the stack, so that the other layers' have a gradient: several processes wait for it.
        return own[:1].expand_as(own) if self.config.entropy_thresholds == "shared" else own

    def _penalty_rule(self) -> dict[str, Any]:
        config = self.config
        by_context = config.max_entropy == "log_context"
        return {
            "weight": config.entropy_weight,
            "tokens": config.entropy_tokens,
            "strength_bias": None if self.strength_bias is None else whole(self.strength_bias),
            "margin": config.tolerance_margin,
            "max_entropy": config.max_entropy,
            "context_length": self.transformer.context_length if by_context else None,
            "reduction": config.entropy_reduction,
        }


def whole(parameter: Tensor) -> Tensor:
    """The parameter itself, or all of it where `fully_shard` has sharded it again after its block.

    The gradient that comes back is averaged over the processes, as `fully_shard` does it.
    """
    if not isinstance(parameter, DTensor):
        return parameter
    averaged = [Partial("avg")] * parameter.device_mesh.ndim
    return parameter.full_tensor(grad_placements=averaged)


def carry_over(model: nn.Module) -> AeroForCausalLM:
    """The same network as an `AeroForCausalLM`; one that is an `AeroForCausalLM` is itself.

    The carried network is compared with the model on a few tokens, so that a tree with GPT-2's
    names but another forward is refused, not misread.

    Args:
        model: a supported network; it is left unchanged. Dropout outside attention is left out.

    Returns:
        A new network with its own copy of the weights, in the device, dtype and mode of `model`.

    Raises:
        ValueError: a network of another kind, or with parts that AERO networks do not have; the
            message names it and the alternative.
    """
    return carried_over(model, AeroForCausalLM)
