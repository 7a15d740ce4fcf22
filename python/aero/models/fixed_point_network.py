"""A trained AERO network in the fixed-point arithmetic of private inference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from aero.models.causal_lm import AeroForCausalLM
from aero.models.decoder import check_token_ids
from aero.models.outputs import AeroCausalLMOutput

if TYPE_CHECKING:
    from aero.fixed_point import Approximations


class FixedPointForCausalLM(nn.Module):
    """Logits as two parties running SPU would get them: every operation in Z_2^64.

    Embeddings, matrix products, softmax, LayerNorm, DyT, Derf and activations are those of
    `aero.fixed_point`. Foldable norms and the scales of linear FFNs are part of the encoded
    weights. Runs on the CPU, one thread; the weights are those at construction.

    Args:
        model: the trained network.
        approximations: the arithmetic; the default is that of `spu-2024`.

    Raises:
        ValueError: a model of another class.

    Example:
        >>> from aero import AeroForCausalLM
        >>> from aero.models import FixedPointForCausalLM
        >>> import torch
        >>> from aero.models import AeroConfig
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+ScFuFFN", model="tiny")).eval()
        >>> tokens = torch.randint(256, (1, 32))
        >>> difference = FixedPointForCausalLM(model)(tokens).logits - model(tokens).logits
        >>> difference.abs().max().item() < 1e-2
        True
    """

    def __init__(
        self, model: AeroForCausalLM, approximations: Approximations | None = None
    ) -> None:
        # Descriptions, and the costs behind them, are not loaded on the way to a training's step.
        from aero.models.network_writer import described_network
        from aero.network.ring_reader import RingNetwork

        super().__init__()
        if not isinstance(model, AeroForCausalLM):
            raise ValueError(
                "FixedPointForCausalLM: model must be an AeroForCausalLM (aero.convert makes one), "
                f"got {type(model).__name__}"
            )
        self.source = model
        self._network = RingNetwork(described_network(model, dtype=torch.float64), approximations)

    @torch.no_grad()
    def forward(self, input_ids: Tensor, use_cache: bool | None = None) -> AeroCausalLMOutput:
        """Runs the network on whole sequences.

        Args:
            input_ids: [B, T] token ids, without padding.
            use_cache: ignored; there is no cache.

        Returns:
            An output with `logits`, [B, T, V], float64, on the device of `input_ids`.

        Raises:
            ValueError: sequences beyond the context length, ids beyond the vocabulary.
        """
        context = self.source.transformer.context_length
        if input_ids.dim() != 2 or input_ids.shape[1] > context:
            raise ValueError(
                f"FixedPointForCausalLM: input_ids must be [B, T] with T up to {context}, got "
                f"{list(input_ids.shape)}"
            )
        check_token_ids("FixedPointForCausalLM", input_ids, self.source.config.spec.vocab_size)
        values = self._network.logits(input_ids.cpu().numpy())
        return AeroCausalLMOutput(logits=torch.from_numpy(values).to(input_ids.device))
