"""A trained AERO network in the fixed-point arithmetic of private inference."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aero.fixed_point import Approximations
from aero.models.causal_lm import AeroForCausalLM
from aero.models.embedding import check_token_ids
from aero.models.fixed_point_layers import (
    Affine,
    Attention,
    FeedForwardNetwork,
    FixedPointOperations,
    Normalization,
    Ring,
    joined_scaled_feed_forward,
    real,
    scales,
)
from aero.models.outputs import AeroCausalLMOutput
from aero.nn import Block, ScaledFeedForward, ScaledFusedFeedForward
from aero.nn.rotary import RotaryTables, rotary_tables


class FixedPointForCausalLM(nn.Module):
    """Logits as two parties running SPU would get them: every operation in Z_2^64.

    Embeddings, matrix products, softmax, LayerNorm, DyT, Derf and activations are those of
    `aero.fixed_point`. Foldable norms and the scales of linear FFNs are part of the encoded
    weights. Runs on the CPU, one thread; the weights are those at construction.

    Args:
        model: the trained network.
        approximations: the arithmetic; the default is that of `spu-2024`.

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
        super().__init__()
        self.source = model
        self.operations = FixedPointOperations(approximations or Approximations())
        decoder = model.transformer
        width = model.config.spec.width
        self._embeddings = self.operations.encode(
            real(decoder.wte.weight) * float(model.config.embedding_scale)
        )
        self._positions = (
            None if decoder.wpe is None else self.operations.encode(real(decoder.wpe.weight))
        )
        self._blocks = [
            _FixedPointBlock(self.operations, block, width, decoder.negative_slope)
            for block in decoder.blocks()
        ]
        self._final_norm = Normalization(self.operations, decoder.ln_f, width)
        head = real(model.lm_head.weight) * self._final_norm.scale
        self._head = Affine(self.operations, head.T)

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
        decoder = self.source.transformer
        ids = input_ids.cpu().numpy()
        if ids.ndim != 2 or ids.shape[1] > decoder.context_length:
            raise ValueError(
                f"FixedPointForCausalLM: input_ids must be [B, T] with T up to "
                f"{decoder.context_length}, got {list(ids.shape)}"
            )
        # NumPy would count negative ids from the end.
        check_token_ids("FixedPointForCausalLM", input_ids, len(self._embeddings))
        num_tokens = ids.shape[1]
        stream = self._embeddings[ids]
        if self._positions is not None:
            stream = stream + self._positions[:num_tokens]
        rotary = None
        if decoder.rotary_dim:
            rotary = rotary_tables(
                torch.arange(num_tokens).unsqueeze(0),
                decoder.rotary_dim,
                base=self.source.config.rotary_base,
            )
        for block in self._blocks:
            stream = block(stream, rotary)
        logits = self._head(self._final_norm(stream))
        values = self.operations.arithmetic.decode(logits)
        return AeroCausalLMOutput(logits=torch.from_numpy(values).to(input_ids.device))


class _FixedPointBlock:
    """One layer; `aero.nn.Block` has the residual schemes."""

    def __init__(
        self,
        operations: FixedPointOperations,
        block: Block,
        width: int,
        network_slope: Tensor | None,
    ) -> None:
        self.operations = operations
        self.residual = block.residual
        mlp = block.mlp
        self.first_norm = Normalization(operations, block.ln_1, width)
        self.attention = Attention(operations, block.attn, self.first_norm.scale)
        # A skipless block's feed-forward reads the inputs of its attention.
        is_skipless = block.residual == "skipless"
        self.second_norm = (
            self.first_norm if is_skipless else Normalization(operations, block.ln_2, width)
        )
        self.feed_forward: Affine | FeedForwardNetwork | None = None
        self.stream_scale: float | None = 1.0
        if mlp is None:
            return
        scale = self.second_norm.scale
        if isinstance(mlp, ScaledFusedFeedForward) and self.second_norm.kept is None:
            self.feed_forward = joined_scaled_feed_forward(operations, mlp, scale)
            self.stream_scale = None  # it is in the matrix
            return
        output_scale = 1.0 if block.gain is None else block.gain.item()
        if isinstance(mlp, (ScaledFeedForward, ScaledFusedFeedForward)):
            alpha, self.stream_scale = scales(mlp)
            output_scale = 1 / alpha
        self.feed_forward = FeedForwardNetwork(operations, mlp, scale, output_scale, network_slope)

    def __call__(self, stream: Ring, rotary: RotaryTables | None) -> Ring:
        inputs = self.first_norm(stream)
        attended = self.attention(inputs, rotary)
        if self.residual == "parallel":
            return attended + self._after_feed_forward(stream)
        if self.residual == "sequential":
            return self._after_feed_forward(stream + attended)
        if self.feed_forward is not None:
            attended = attended + self.feed_forward(inputs)
        return attended

    def _after_feed_forward(self, stream: Ring) -> Ring:
        if self.feed_forward is None:
            return stream
        output = self.feed_forward(self.second_norm(stream))
        if self.stream_scale is None:
            return output
        if self.stream_scale == 1:
            return stream + output
        return self.operations.times(stream, self.stream_scale) + output
