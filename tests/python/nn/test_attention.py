import math

import pytest
import torch

from aero.nn import CausalSelfAttention, SequenceContext, ShapedSelfAttention, Temperature
from aero.nn.attention import causal_attention, uniform_attention
from aero.nn.rotary import apply_rotary, rotary_tables

B, T, C, H = 2, 7, 12, 3


def _causal(rows, columns):
    return torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)


def _softmax(query, key, mask, temperature, scale):
    scores = query @ key.transpose(-1, -2) * scale / temperature
    return scores.masked_fill(~mask, -math.inf).softmax(dim=-1)


def _heads(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


@pytest.mark.parametrize("head_dim", [None, 5])
def test_attention_and_entropy_equal_their_definitions(head_dim):
    temperature = Temperature("head_position", num_heads=H, context_length=T)
    torch.nn.init.uniform_(temperature.value, 0.5, 2.0)
    layer = CausalSelfAttention(C, H, head_dim, temperature=temperature).double()
    x = torch.randn(B, T, C, dtype=torch.float64)
    output, entropy = layer(x, SequenceContext())

    query, key, value = (_heads(part, H) for part in layer.c_attn(x).chunk(3, dim=-1))
    scale = 1 / math.sqrt(layer.head_dim)
    weights = _softmax(query, key, _causal(T, T), temperature.value.unsqueeze(-1), scale)
    joined = (weights @ value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(output, layer.c_proj(joined))
    torch.testing.assert_close(entropy, -torch.xlogy(weights, weights).sum(-1))
    assert layer.c_proj.in_features == H * layer.head_dim


def test_equal_scores_have_the_entropy_of_the_visible_keys():
    layer = CausalSelfAttention(C, H)
    torch.nn.init.zeros_(layer.c_attn.weight)
    _, entropy = layer(torch.randn(B, T, C), SequenceContext())
    expected = torch.arange(1.0, T + 1).log().expand(B, H, T)
    torch.testing.assert_close(entropy, expected)


def test_the_unwritten_end_of_a_preallocated_cache_is_not_seen():
    query, key, value = (torch.randn(B, H, length, 4) for length in (T, T + 5, T + 5))
    output, entropy = causal_attention(query, key, value, SequenceContext())
    expected, expected_entropy = causal_attention(
        query, key[:, :, :T], value[:, :, :T], SequenceContext()
    )
    assert torch.equal(output, expected)
    assert torch.equal(entropy, expected_entropy)


def test_one_query_sees_every_cached_key():
    query, key = torch.zeros(B, H, 1, 4), torch.randn(B, H, T, 4)
    output, _ = causal_attention(query, key, key, SequenceContext())
    torch.testing.assert_close(output, key.mean(dim=2, keepdim=True))


@pytest.mark.parametrize("num_queries", [1, 4, T])
def test_uniform_attention_with_and_without_a_mask(num_queries):
    value = torch.randn(B, H, T, 4)
    mask = _causal(num_queries, T).expand(B, 1, -1, -1)
    weights = mask / mask.sum(-1, keepdim=True)
    expected = weights @ value
    torch.testing.assert_close(uniform_attention(value, num_queries), expected)
    torch.testing.assert_close(uniform_attention(value, num_queries, mask), expected)


def test_uniform_attention_that_sees_nothing_is_zero():
    mask = torch.zeros(1, 1, T, T, dtype=torch.bool)
    assert not uniform_attention(torch.randn(B, H, T, 4), T, mask).any()


@pytest.mark.parametrize("head_dim", [2, 4, 9])
@pytest.mark.parametrize("is_masked", [False, True])
def test_shaped_attention_equals_its_matrix_form(head_dim, is_masked):
    layer = ShapedSelfAttention(C, H, head_dim).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(B, T, C, dtype=torch.float64)
    visible = _causal(T, T).expand(B, 1, T, T).clone()
    if is_masked:
        visible[0, :, 2:, 0] = False
    output, _ = layer(x, SequenceContext(mask=visible if is_masked else None))

    query, key, value = _heads(layer.q_attn(x), H), _heads(layer.k_attn(x), H), _heads(x, H)
    softmax = _softmax(query, key, visible, 1.0, 1 / math.sqrt(head_dim))
    alpha, beta, gamma = (p.view(-1, 1, 1) for p in (layer.alpha, layer.beta, layer.gamma))
    identity = torch.eye(T, dtype=torch.float64)
    uniform = visible.double() / visible.sum(-1, keepdim=True)
    matrix = alpha * identity + beta * softmax - gamma * uniform
    torch.testing.assert_close(output, (matrix @ value).transpose(1, 2).flatten(2))


def test_shaped_attention_needs_heads_that_divide_the_width():
    for width, num_heads in ((10, 3), (8, 3), (3, 4), (7, 5)):
        with pytest.raises(ValueError, match="width must be a multiple of num_heads"):
            ShapedSelfAttention(width, num_heads)
    for width, num_heads in ((6, 3), (15, 5), (7, 7), (9, 1)):
        assert ShapedSelfAttention(width, num_heads).head_dim == width // num_heads
    with pytest.raises(ValueError, match="num_heads 3, or head_dim be given, got 10"):
        CausalSelfAttention(10, 3)


def test_rotary_positions_equal_those_of_gpt_neox():
    from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb

    heads = torch.randn(B, H, T, 16)
    position_ids = torch.arange(3, 3 + T).unsqueeze(0)
    angles = position_ids.unsqueeze(-1) / 10000 ** (torch.arange(0, 4, 2) / 4)
    angles = torch.cat((angles, angles), dim=-1)
    expected, _ = apply_rotary_pos_emb(heads, heads, angles.cos(), angles.sin())
    torch.testing.assert_close(apply_rotary(heads, rotary_tables(position_ids, 4)), expected)
