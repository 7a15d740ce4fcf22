"""Modules of ours within other people's GPT-2 code, loaded from its state dicts."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from aero.nn import (
    CausalSelfAttention,
    DropInAttention,
    DropInBlock,
    FeedForward,
    FusedFeedForward,
    ScaledFeedForward,
    ScaledFusedFeedForward,
    SequenceContext,
    Temperature,
)
from aero.nn.linear import Linear
from aero.nn.weight_forms import TransposedLinear, set_weight_layout


def gpt2(**fields):
    config = GPT2Config(
        n_layer=2, n_embd=24, n_head=3, n_positions=16, vocab_size=31, attn_pdrop=0.0,
        resid_pdrop=0.0, embd_pdrop=0.0, bos_token_id=None, eos_token_id=None, **fields,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.eval()


class NanoAttention(nn.Module):
    def __init__(self, width, num_heads, bias=True):
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)
        self.n_head = num_heads
        self.register_buffer("bias", torch.tril(torch.ones(1, 1, 9, 9)))

    def forward(self, x):
        parts = self.c_attn(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


@settings(max_examples=20)
@given(
    batch=st.integers(0, 3),
    length=st.integers(1, 9),
    heads=st.integers(1, 4),
    head_dim=st.integers(1, 9),
    bias=st.booleans(),
)
def test_attention_loads_a_nanogpt_state_dict_and_gives_the_same(
    batch, length, heads, head_dim, bias
):
    width = heads * head_dim
    theirs = NanoAttention(width, heads, bias)
    ours = DropInAttention(width, heads, host="nanogpt", temperature=None)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(batch, length, width)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
    assert ours.entropy.shape == (batch, heads, length)


def test_attention_replaces_that_of_gpt2_one_layer_at_a_time():
    model = gpt2()
    changed = copy.deepcopy(model)
    for index, block in enumerate(changed.transformer.h):
        theirs, block.attn = block.attn, DropInAttention(24, 3, layer_index=index)
        block.attn.load_state_dict(theirs.state_dict())
    ids = torch.randint(31, (2, 11))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    weights = model.set_attn_implementation("eager") or model(ids, output_attentions=True)
    torch.testing.assert_close(changed(ids).logits, weights.logits, rtol=1e-4, atol=1e-5)
    for block, probabilities in zip(changed.transformer.h, weights.attentions, strict=True):
        expected = torch.special.entr(probabilities.double()).sum(dim=-1).float()
        torch.testing.assert_close(block.attn.entropy, expected, rtol=1e-4, atol=1e-5)
    prompts = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(ids, **prompts), changed.generate(ids, **prompts))


def test_a_temperature_divides_the_scores_of_the_host():
    model = gpt2()
    theirs = model.transformer.h[0].attn
    temperature = Temperature("head_position", num_heads=3, context_length=16, init=0.5)
    ours = DropInAttention(24, 3, temperature=temperature, entropy_threshold=0.5)
    ours.load_state_dict(theirs.state_dict())  # has neither temperature nor threshold
    assert ours.temperature.value.eq(0.5).all() and ours.entropy_threshold.eq(0.5).all()
    x = torch.randn(2, 5, 24)
    query, rest = theirs.c_attn.weight[:, :24] / 0.5, theirs.c_attn.weight[:, 24:]
    with torch.no_grad():
        theirs.c_attn.weight.copy_(torch.cat((query, rest), dim=1))
        theirs.c_attn.bias[:24] /= 0.5
    torch.testing.assert_close(ours(x)[0], theirs(x)[0], rtol=1e-4, atol=1e-5)


def test_positions_of_the_host_choose_the_temperatures():
    temperature = Temperature("head_position", num_heads=1, context_length=8)
    nn.init.uniform_(temperature.value, 0.2, 2.0)
    attention = DropInAttention(4, 1, temperature=temperature)
    x = torch.randn(1, 3, 4)
    moved = attention(x, position_ids=torch.tensor([[2, 3, 4]]))[0]
    context = SequenceContext(position_ids=torch.tensor([[2, 3, 4]]))
    torch.testing.assert_close(moved, CausalSelfAttention.forward(attention, x, context)[0])
    assert not torch.allclose(moved, attention(x)[0])


@pytest.mark.parametrize("host", ["gpt2", "nanogpt"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: ScaledFeedForward(24, 96),
        lambda: FeedForward(24, 96, "linear"),
        lambda: FeedForward(24, 96, "gelu"),
        lambda: ScaledFusedFeedForward(24),
        lambda: FusedFeedForward(24),
        lambda: None,
    ],
)
def test_a_norm_free_block_computes_as_ours_and_loads_what_it_has_from_the_host(host, make):
    theirs = gpt2().transformer.h[1].state_dict()
    if host == "nanogpt":
        turned = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
        theirs = {n: v.t() if n.endswith(turned) else v for n, v in theirs.items()}
    block = DropInBlock(CausalSelfAttention(24, 3), make(), host=host)
    assert block.entropy is None
    own = set(block.state_dict())
    missing, unexpected = block.load_state_dict(theirs, strict=False)
    is_fused = isinstance(block.mlp, FusedFeedForward)
    assert missing == (["mlp.weight", "mlp.bias"] if is_fused else [])
    assert set(unexpected) == set(theirs) - own
    for name in own & set(theirs):
        assert torch.equal(block.state_dict()[name], theirs[name])
    x = torch.randn(2, 7, 24)
    with torch.no_grad():
        for name in ("alpha", "beta"):
            if hasattr(block.mlp, name):
                getattr(block.mlp, name).fill_(0.7)
        attended, entropy = block.attn(x, SequenceContext())
        expected = x + attended
        if hasattr(block.mlp, "scaled"):
            expected = 0.7 * expected + block.mlp(expected) / 0.7
        elif block.mlp is not None:
            expected = expected + block.mlp(expected)
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(block.entropy, entropy)


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_computes_the_same_in_both_layouts(bias):
    layer = Linear(5, 7, bias, start="residual")
    module = nn.Sequential(layer)
    x = torch.randn(3, 5)
    expected = layer(x)
    turned = set_weight_layout(module, "in_out")[0]
    assert isinstance(turned, TransposedLinear) and turned.start == "residual"
    torch.testing.assert_close(turned(x), expected)
    assert torch.equal(turned.weight, layer.weight.t())
    back = set_weight_layout(module, "out_in")[0]
    assert type(back) is Linear and torch.equal(back.weight, layer.weight)
    turned(x).sum().backward()
    assert turned.weight.grad.shape == (5, 7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: set_weight_layout(nn.Linear(2, 2), "io"), "layout must be 'out_in' or 'in_out'"),
        (
            lambda: DropInAttention(4, 2, host="bert"),
            "DropInAttention: host must be 'gpt2', 'nanogpt' or 'gpt_neox'",
        ),
        (
            lambda: DropInAttention(24, 3).load_state_dict(NanoAttention(24, 3).state_dict()),
            r"c_attn.weight must be \[24, 72\] with host='gpt2', got its transpose \[72, 24\]",
        ),
        (
            lambda: DropInBlock(
                CausalSelfAttention(24, 3), FeedForward(24, 96, "gelu"), host="nanogpt"
            ).load_state_dict(gpt2().transformer.h[0].state_dict(), strict=False),
            r"DropInBlock: attn.c_attn.weight must be \[72, 24\] with host='nanogpt'",
        ),
        (
            lambda: DropInAttention(4, 2, temperature=0.5),
            "temperature must be an aero.nn.Temperature, got float",
        ),
        (lambda: DropInAttention(4, 2, attention_dropout=1.0), "attention_dropout must be .*got 1"),
        (lambda: DropInAttention(4, 2, dropout=1.0), "dropout must be .*got 1"),
        (lambda: DropInAttention(4, 3), "width must be a multiple of num_heads 3, .* got 4"),
        (
            lambda: DropInAttention(4, 2)(
                torch.zeros(1, 2, 4), encoder_hidden_states=torch.zeros(1, 2, 4)
            ),
            "cross-attention is not supported; keep the host's own module",
        ),
        (
            lambda: DropInAttention(4, 2)(
                torch.zeros(1, 2, 4), attention_mask=torch.zeros(1, 1, 2, 2)
            ),
            r"must be boolean .* got torch.float32; call model.set_attn_implementation\('aero'\)",
        ),
    ],
)
def test_wrong_use_is_refused_with_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_attention_drops_its_output_in_training_as_the_host_does():
    attention = DropInAttention(24, 3, host="nanogpt", dropout=0.5)
    x = torch.randn(2, 7, 24)
    whole = attention.eval()(x)
    dropped = attention.train()(x)
    is_dropped = dropped == 0
    assert 0.3 < is_dropped.float().mean() < 0.7
    torch.testing.assert_close(dropped[~is_dropped], 2 * whole[~is_dropped])


@pytest.mark.parametrize(
    "make",
    [FeedForward, ScaledFeedForward, lambda width, _: ScaledFusedFeedForward(width)],
)
def test_a_block_drops_what_its_parts_add_and_never_the_stream(make):
    block = DropInBlock(CausalSelfAttention(24, 3), make(24, 96), host="nanogpt", dropout=0.5)
    x = torch.randn(2, 7, 24)
    with torch.no_grad():
        for name, scale in (("alpha", 0.5), ("beta", 0.75)):
            if hasattr(block.mlp, name):
                getattr(block.mlp, name).fill_(scale)
        for parameter in block.attn.parameters():
            parameter.zero_()
        output = getattr(block.mlp, "c_proj", block.mlp)
        output.weight.zero_()
        output.bias.fill_(1.0)  # the feed-forward adds 1 everywhere
    alpha, beta = (getattr(block.mlp, n, torch.ones(1)).item() for n in ("alpha", "beta"))
    added = (block.train()(x) - beta * x) * alpha
    is_dropped = added.abs() < 1e-5
    assert 0.3 < is_dropped.float().mean() < 0.7
    torch.testing.assert_close(added[~is_dropped], torch.full_like(added[~is_dropped], 2.0))
    whole = (block.eval()(x) - beta * x) * alpha
    torch.testing.assert_close(whole, torch.ones_like(whole))
