"""Programs that know nothing of this library train to the same losses on its kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from aero.ops.torch_attention import accelerate

from .torch_calls import OURS, ran

VOCABULARY, WIDTH, HEADS, LENGTH, STEPS = 61, 32, 4, 48, 20


class Block(nn.Module):
    """A block in the manner of nanoGPT: one product for q, k and v, and flash attention."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, width // HEADS).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.mlp(self.ln_2(x))


class SmallGPT(nn.Module):
    """Token and position embeddings, two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block(), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe.weight
        return self.head(self.blocks(x))


def nanogpt() -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = SmallGPT()

    def loss(tokens: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    return model, loss


def gpt2() -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = GPT2LMHeadModel._from_config(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=HEADS,
            attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
        ),
        attn_implementation="sdpa",
    )  # fmt: skip
    # Padding on the left of the second sequence, as a mask.
    seen = torch.ones(2, LENGTH, dtype=torch.long)
    seen[1, :7] = 0

    def loss(tokens: Tensor) -> Tensor:
        labels = tokens.masked_fill(seen == 0, -100)
        return model(tokens, attention_mask=seen, labels=labels).loss

    return model, loss


def llama() -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = LlamaForCausalLM._from_config(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=2 * WIDTH,
            num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=HEADS // 2,
            max_position_embeddings=LENGTH,
        ),
        attn_implementation="sdpa",
    )  # fmt: skip
    return model, lambda tokens: model(tokens, labels=tokens).loss


def losses(build: Callable[[], tuple[nn.Module, Callable[[Tensor], Tensor]]]) -> list[float]:
    torch.manual_seed(0)
    model, loss = build()
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.05, momentum=0.9)
    found = []
    for _ in range(STEPS):
        tokens = torch.randint(VOCABULARY, (2, LENGTH)).sort().values
        value = loss(tokens)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(value.detach()))
    return found


@pytest.mark.parametrize("build", [nanogpt, gpt2, llama])
def test_twenty_steps_have_the_losses_of_torchs_own_attention(
    build: Callable[[], tuple[nn.Module, Callable[[Tensor], Tensor]]],
) -> None:
    theirs = losses(build)
    ours: list[float] = []
    with accelerate():
        assert ran(lambda: ours.extend(losses(build))) == OURS
    assert theirs[-1] < theirs[0] - 0.1  # it learns, so gradients count
    # Roundings of the first steps grow with every further one.
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=0)


def test_generation_gives_the_same_tokens_with_a_cache() -> None:
    torch.manual_seed(0)
    model, _ = llama()
    tokens = torch.randint(VOCABULARY, (2, 9))

    def generated() -> Tensor:
        return model.eval().generate(  # type: ignore[operator]
            tokens, max_new_tokens=12, do_sample=False, pad_token_id=0
        )

    want = generated()
    with accelerate():
        found: list[Tensor] = []
        assert "aero::attention_entropy" in ran(lambda: found.append(generated()))
    assert torch.equal(found[0], want)
