"""Whole outcomes of small modules: their words, starts, devices and types."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from transformers import DynamicCache

from aero.nn import (
    CausalSelfAttention,
    DropInAttention,
    DropInBlock,
    FeedForward,
    FoldableNorm,
    FusedFeedForward,
    ScaledFeedForward,
    ScaledFusedFeedForward,
    SequenceContext,
    ShapedSelfAttention,
    Temperature,
)
from aero.nn import (
    linear as layers,
)
from aero.nn.annealed_modules import AnnealedFeedForward, AnnealedNorm
from aero.nn.attention import causal_attention, uniform_attention
from aero.nn.drop_in import _host_context
from aero.nn.linear import Linear, linear
from aero.nn.rotary import apply_rotary, rotary_tables
from aero.nn.weight_forms import TransposedLinear, normalize_weight, set_weight_layout

REPRS = {
    "FeedForward": (lambda: FeedForward(4, 8, "relu"), "activation='relu'"),
    "FusedFeedForward": (lambda: FusedFeedForward(4), "4"),
    "AnnealedFeedForward": (
        lambda: AnnealedFeedForward(4, 8, source="gelu", target=None),
        "'gelu' -> None",
    ),
    "TransposedLinear": (lambda: TransposedLinear(4, 8), "4, 8, bias=True"),
    "TransposedLinear without": (lambda: TransposedLinear(4, 8, False), "4, 8, bias=False"),
    "FoldableNorm": (lambda: FoldableNorm(4, kind="scalar"), "4, kind='scalar', eps=1e-06"),
    "Temperature": (
        lambda: Temperature("head", num_heads=2, context_length=4),
        "'head', parametrization='identity'",
    ),
}


@pytest.mark.parametrize("name", REPRS)
def test_a_module_is_printed_with_its_settings(name):
    make, text = REPRS[name]
    assert make().extra_repr() == text


STARTS = {
    "attention": (
        lambda: CausalSelfAttention(8, 2),
        {"c_attn": ("normal", 8, 24), "c_proj": ("residual", 8, 8)},
    ),
    "apart": (
        lambda: CausalSelfAttention(8, 2, 3, separate_projections=True),
        {
            **{f"{name}_attn": ("normal", 8, 6) for name in "qkv"},
            "c_proj": ("residual", 6, 8),
        },
    ),
    "shaped": (
        lambda: ShapedSelfAttention(8, 2, 3),
        {"q_attn": ("zero", 8, 6), "k_attn": ("normal", 8, 6)},
    ),
    "feed-forward": (
        lambda: FeedForward(8, 16),
        {"c_fc": ("normal", 8, 16), "c_proj": ("residual", 16, 8)},
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_the_layers_of_a_module_start_as_their_place_wants(name):
    make, starts = STARTS[name]
    found = {
        name: (layer.start, layer.in_features, layer.out_features)
        for name, layer in make().named_modules()
        if isinstance(layer, Linear)
    }
    assert found == starts


def test_a_shaped_attention_starts_as_the_identity_with_the_thresholds_that_are_asked_for():
    layer = ShapedSelfAttention(8, 2, entropy_threshold=0.25, layer_index=1)
    assert not layer.q_attn.weight.any() and not layer.q_attn.bias.any()
    assert layer.k_attn.weight.any()
    scalars = (layer.alpha, layer.beta, layer.gamma, layer.entropy_threshold)
    assert [p.tolist() for p in scalars] == [[1, 1], [1, 1], [1, 1], [0.25, 0.25]]


@pytest.mark.parametrize("kind", [CausalSelfAttention, ShapedSelfAttention, DropInAttention])
def test_a_layer_uses_its_own_place_in_a_cache(kind):
    layer, cache = kind(8, 2, layer_index=1), DynamicCache()
    cache.update(torch.zeros(2, 2, 3, 4), torch.zeros(2, 2, 3, 4), 0)
    given = {"cache": cache} if kind is DropInAttention else {}
    layer(torch.randn(2, 5, 8), *([] if given else [SequenceContext(cache=cache)]), **given)
    assert (cache.get_seq_length(0), cache.get_seq_length(1)) == (3, 5)


def test_heads_that_do_not_divide_the_width_have_a_width_of_their_own():
    output, entropy = CausalSelfAttention(10, 3, 4)(torch.randn(2, 5, 10), SequenceContext())
    assert output.shape == (2, 5, 10) and entropy.shape == (2, 3, 5)


def test_a_mask_decides_over_a_preallocated_cache():
    query, key, value = torch.randn(3, 2, 2, 7, 4)
    mask = torch.zeros(2, 1, 3, 7, dtype=torch.bool)
    mask[..., 4:] = True
    output, entropy = causal_attention(
        query[:, :, :3], key, value, SequenceContext(mask=mask), scale=0.25
    )
    weights = (query[:, :, :3] @ key[:, :, 4:].mT * 0.25).softmax(-1)
    torch.testing.assert_close(output, weights @ value[:, :, 4:])
    torch.testing.assert_close(entropy, -torch.xlogy(weights, weights).sum(-1))


def test_means_of_bfloat16_values_are_summed_in_float32():
    means = uniform_attention(torch.ones(1, 1, 700, 2, dtype=torch.bfloat16), 3)
    assert means.dtype == torch.bfloat16 and means.eq(1).all() and means.shape == (1, 1, 3, 2)


IDS = torch.tensor([[2, 0, 1]])


def _placed(attention, x):
    ids = IDS.to(x.device)
    return attention(x, SequenceContext(rotary=rotary_tables(ids, 4), position_ids=ids))


def _in_no_place(attention, x):
    return attention(x, SequenceContext())


FORWARDS = {
    "attention": (
        lambda: CausalSelfAttention(
            8, 2, temperature=Temperature("head_position", num_heads=2, context_length=8)
        ),
        _placed,
    ),
    "apart": (lambda: CausalSelfAttention(8, 2, separate_projections=True), _in_no_place),
    "shaped": (lambda: ShapedSelfAttention(8, 2, 2), _in_no_place),
    "leaky": (lambda: FeedForward(8, 16, "leaky_relu", negative_slope=0.1), nn.Module.__call__),
    "scaled": (lambda: ScaledFeedForward(8, 16), lambda ffn, x: ffn.scaled(x, x)),
    "fused": (
        lambda: ScaledFusedFeedForward(8),
        lambda ffn, x: ffn.scaled(x, input_scale=x[0, 0]),
    ),
    "annealed": (
        lambda: AnnealedFeedForward(8, 16, source="gelu", target="relu"),
        nn.Module.__call__,
    ),
    "norm": (lambda: FoldableNorm(8), lambda norm, x: norm(x, x[..., 0].bool())),
    "annealed norm": (
        lambda: AnnealedNorm(nn.LayerNorm(8), FoldableNorm(8)),
        nn.Module.__call__,
    ),
    "layout": (
        lambda: nn.Sequential(Linear(8, 4)),
        lambda layers, x: set_weight_layout(layers, "in_out")(x),
    ),
    "drop-in": (
        lambda: DropInBlock(CausalSelfAttention(8, 2), ScaledFusedFeedForward(8)),
        nn.Module.__call__,
    ),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_everything_stays_on_its_device(name):
    make, run = FORWARDS[name]
    with torch.device("meta"):
        module, x = make(), torch.zeros(2, 3, 8)
    found = run(module, x)
    for tensor in found if isinstance(found, tuple) else (found,):
        assert tensor.device.type == "meta"


@pytest.mark.parametrize("name", FORWARDS)
def test_everything_follows_autocast(name):
    make, run = FORWARDS[name]
    module, x = make().eval(), torch.randn(2, 3, 8)
    outputs = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found = run(module, x)
        outputs.append(found if isinstance(found, tuple) else (found,))
    for plain, low in zip(*outputs, strict=True):
        torch.testing.assert_close(low.float(), plain, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", [name for name in FORWARDS if name != "norm"])
def test_a_module_in_bfloat16_gives_bfloat16(name):
    make, run = FORWARDS[name]
    found = run(make().bfloat16(), torch.randn(2, 3, 8).bfloat16())
    assert (found[0] if isinstance(found, tuple) else found).dtype == torch.bfloat16


def test_a_float32_slope_or_scale_takes_the_type_of_the_layer():
    x, slope = torch.randn(2, 3, 8).bfloat16(), torch.full((1,), 0.3)
    assert FeedForward(8, 16, "leaky_relu").bfloat16()(x, slope).dtype == torch.bfloat16
    fused = ScaledFusedFeedForward(8).bfloat16()
    assert fused.scaled(x, input_scale=torch.ones(8)).dtype == torch.bfloat16


# --- linear layers ----------------------------------------------------------------------------


def _is_onednn(rows=64, width=64, outputs=64, dtype=torch.float32, of=None, device="cpu"):
    return layers._runs_on_onednn(
        torch.zeros(rows, width, dtype=dtype, device=device),
        torch.zeros(outputs, of or width, dtype=dtype),
    )


def test_onednn_runs_where_all_of_its_conditions_hold(monkeypatch):
    monkeypatch.setattr(layers, "_prefers_mkl", lambda: False)
    assert _is_onednn()  # 2^18 products
    assert not _is_onednn(rows=63) and not _is_onednn(of=63) and not _is_onednn(device="meta")
    assert not _is_onednn(dtype=torch.float64)
    assert not layers._runs_on_onednn(torch.zeros(64, 64), torch.zeros(64, 64).bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert not _is_onednn()
    with torch.backends.mkldnn.flags(enabled=False):
        assert not _is_onednn()
    for owner, name, said in (
        (torch.compiler, "is_compiling", True),
        (torch.backends.mkldnn, "is_available", False),
        (layers, "_prefers_mkl", True),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, lambda said=said: said)
            assert not _is_onednn()


@pytest.mark.parametrize("wanted", range(1, 8))
def test_each_gradient_may_be_asked_for_alone(wanted):
    leaves = [torch.randn(64, 64), torch.randn(80, 64), torch.randn(80)]
    for number, leaf in enumerate(leaves):
        leaf.requires_grad_(bool(wanted & 1 << number))
    asked = [leaf for leaf in leaves if leaf.requires_grad]
    gradients = [
        torch.autograd.grad(apply(*leaves).square().sum(), asked)
        for apply in (linear, nn.functional.linear)
    ]
    for found, expected in zip(*gradients, strict=True):
        # Sums of up to 80 products of size 100.
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-2)


def test_a_training_forward_makes_one_power_iteration():
    layers = []
    for make in (parametrizations.spectral_norm, lambda x: normalize_weight(x, "spectral_norm")):
        torch.manual_seed(3)
        layers.append(make(nn.Linear(6, 5)))
    plain, ours = layers  # one is torch's default
    for _ in range(2):
        for module in (plain, ours):
            module(torch.randn(3, 6)).sum().backward()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)


@pytest.mark.parametrize("kind", [Linear, TransposedLinear])
@pytest.mark.parametrize("bias", [True, False])
def test_a_turned_layer_keeps_all_but_the_layout(kind, bias):
    layer = kind(3, 5, bias, start="residual").eval()
    layer.weight.requires_grad_(False)
    layout = "in_out" if kind is Linear else "out_in"
    before = torch.get_rng_state()
    (turned,) = set_weight_layout(nn.Sequential(layer), layout)
    assert torch.equal(torch.get_rng_state(), before)
    assert type(turned) is (TransposedLinear if kind is Linear else Linear)
    assert torch.equal(turned.weight, layer.weight.t()) and turned.weight.is_contiguous()
    assert turned.bias is layer.bias and (turned.bias is not None) == bias
    assert (turned.in_features, turned.out_features, turned.start) == (3, 5, "residual")
    assert not turned.training and not turned.weight.requires_grad


def test_a_transposed_layer_draws_what_a_plain_one_draws():
    drawn = []
    for kind in (nn.Linear, TransposedLinear):
        torch.manual_seed(3)
        kind(4, 8, False)
        drawn.append(torch.rand(1))
    assert drawn[0] == drawn[1]


# --- norms, rotations, temperatures -----------------------------------------------------------


def test_a_call_without_a_counted_token_has_no_discrepancy():
    norm = FoldableNorm(2)
    for value in (2.0, 3.0):
        norm(torch.full((2, 3, 2), value))
    assert norm.discrepancy.item() > 0.4
    norm(torch.ones(2, 3, 2), torch.zeros(2, 3, dtype=torch.bool))
    assert norm.discrepancy.item() == 0 and norm.num_updates.item() == 2
    norm(torch.full((1, 1, 2), 9.0))  # one token counts
    assert norm.num_updates.item() == 3 and norm.discrepancy.item() > 1


def test_rotated_heads_keep_their_type_and_unrotated_channels():
    heads = torch.randn(2, 3, 4, 6).bfloat16()
    turned = apply_rotary(heads, rotary_tables(torch.arange(4)[None], 4))
    assert turned.dtype == torch.bfloat16 and torch.equal(turned[..., 4:], heads[..., 4:])


def test_temperatures_of_consecutive_positions():
    temperature = Temperature("head_position", num_heads=2, context_length=8, init=-1.0)
    with torch.no_grad():
        temperature.value.copy_(torch.arange(16.0).view(2, 8))
    for first, count, expected in (
        (0, None, range(8)),
        (0, 3, range(3)),
        (2, None, range(2, 8)),
        (2, 3, range(2, 5)),
        (0, 0, ()),
    ):
        found = temperature(first_position=first, num_positions=count)
        assert found[0].tolist() == list(expected)


# --- modules within hosts ---------------------------------------------------------------------


def test_what_a_host_says_of_its_sequences():
    hidden, first, second = torch.zeros(2, 3, 8), DynamicCache(), DynamicCache()
    mask = torch.ones(2, 1, 3, 5, dtype=torch.bool).tril(2)
    mask[0, :, :, :3] = False
    shared = mask[1:].expand(1, 2, 3, 5)
    cos, sin = torch.rand(2, 2, 3, 4)
    ids = torch.arange(3)[None]
    plain = SequenceContext()
    for given, expected in (
        (((), {}), {}),
        (((first,), {}), {"cache": first}),
        (((None,), {"layer_past": second}), {"cache": second}),
        (((), {"past_key_values": second}), {"cache": second}),
        (((), {"cache": second}), {"cache": second}),
        (((first,), {"layer_past": second}), {"cache": first}),
        (((None, mask), {"position_ids": ids}), {"mask": mask, "position_ids": ids}),
        (((None, shared, None), {"use_cache": True}), {"mask": shared}),
    ):
        context = _host_context(hidden, *given[0], **given[1])
        for name in ("mask", "position_ids", "first_position", "cache", "negative_slope", "rotary"):
            assert getattr(context, name) is expected.get(name, getattr(plain, name)), name
        tokens = None if context.token_mask is None else context.token_mask.tolist()
        kept = [[False, True, True] if m is mask and row == 0 else [True] * 3 for row in range(2)
                for m in [expected.get("mask")]]  # fmt: skip
        assert tokens == (kept if "mask" in expected else None)
    rotary = _host_context(hidden, position_embeddings=(cos, sin)).rotary
    assert [table.shape for table in rotary] == [(2, 1, 3, 2)] * 2
    assert torch.equal(rotary[0][:, 0], cos[..., :2]) and torch.equal(rotary[1][:, 0], sin[..., :2])


def _drop_ins():
    return (
        DropInAttention(8, 2, host="nanogpt"),
        DropInBlock(CausalSelfAttention(8, 2), FeedForward(8, 16), host="gpt_neox"),
    )


def test_copies_go_without_the_latest_entropies():
    for module in _drop_ins():
        module(torch.randn(1, 3, 8))
        for other in (copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert other.entropy is None and other.host == module.host
        assert module.entropy.shape == (1, 2, 3)


@pytest.mark.parametrize("host", ["gpt2", "nanogpt", "gpt_neox"])
def test_a_host_gets_what_it_unpacks_and_weights_as_it_has_them(host):
    attention, x = DropInAttention(8, 2, host=host), torch.randn(1, 3, 8)
    assert isinstance(attention(x), torch.Tensor if host == "nanogpt" else tuple)
    layout = (8, 24) if host == "gpt2" else (24, 8)
    assert tuple(attention.c_attn.weight.shape) == layout


def test_checkpoints_of_a_host_are_for_training():
    _, block = _drop_ins()
    assert block.gradient_checkpointing is False
    x, called = torch.randn(1, 3, 8), []

    def recompute(run, *given):
        called.append(given[0])
        return run(*given)

    block._gradient_checkpointing_func = recompute
    expected = block(x)
    block.gradient_checkpointing = True
    torch.testing.assert_close(block.eval()(x), expected)
    assert called == []
    torch.testing.assert_close(block.train()(x), expected)
    assert len(called) == 1 and called[0] is x


def test_a_state_dict_with_old_mask_buffers_loads_and_keeps_what_it_has():
    temperature = Temperature("head", num_heads=2, context_length=4)
    for module in (
        DropInAttention(8, 2, host="nanogpt", temperature=temperature),
        DropInBlock(CausalSelfAttention(8, 2), ScaledFeedForward(8, 16), host="nanogpt"),
    ):
        for parameter in module.parameters():
            nn.init.normal_(parameter)
        state = {name: value + 1 for name, value in module.state_dict().items()}
        place = "" if isinstance(module, DropInAttention) else "attn."
        buffers = {f"{place}{name}": torch.ones(1) for name in ("bias", "masked_bias")}
        module.load_state_dict(state | buffers)
        for name, value in module.state_dict().items():
            assert torch.equal(value, state[name]), name
        lacking = {n: v for n, v in state.items() if not n.endswith((".bias", "alpha", "value"))}
        module.load_state_dict(lacking)
        for name, value in module.state_dict().items():
            kept = torch.zeros_like(value) if name.endswith(".bias") else state[name]
            assert torch.equal(value, kept), name
