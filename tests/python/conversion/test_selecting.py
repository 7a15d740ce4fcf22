"""Parts chosen by their private bytes: the estimate, its gradient, and the network that is left."""

import itertools

import pytest
import torch
from tests.python.refusals import assert_refused

from aero import mpc
from aero.conversion.selecting import GatedPrice, selected, with_gates
from aero.models import AeroConfig, AeroForCausalLM

from .networks import far_from_its_start

ALL = ["heads", "ffns", "activation", "windows"]
LABELS = ["SM+LN+G", "SM+LN+R", "SM+FN+R", "SM+R+S2", "SM+LN+G+D2", "SM+LN+G+C2"]


def network(label="SM+LN+G", **overrides):
    return far_from_its_start(label, **{"num_heads": 4, "num_layers": 3, **overrides})


def tokens():
    return torch.randint(0, 256, (2, 32), generator=torch.Generator().manual_seed(2))


def logits(model):
    with torch.no_grad():
        return model(tokens()).logits


def set_gates(model, **values):
    with torch.no_grad():
        for name, kept in values.items():
            getattr(model.transformer.gates, name).copy_(torch.tensor(kept))


def bytes_of_label(label, heads, *, head_dim=8, **stack):
    spec = AeroConfig.from_label(label, model="tiny", num_heads=4, num_layers=3).spec
    return mpc.simulate(
        label,
        model="tiny",
        num_layers=3,
        num_heads=heads,
        head_dim=head_dim,
        context_length=spec.context_length,
        final_norm=spec.final_norm,
        **stack,
    ).comm_bytes


STACKS = {"spu-2024": ALL, "spu-aby3": ALL, "aero-optimized-generation": ALL[:3]}


@pytest.mark.parametrize("stack", STACKS)
def test_at_gates_of_0_and_1_the_estimate_is_the_simulators_price_to_the_byte(stack):
    price = GatedPrice(network().config.spec, STACKS[stack], stack)
    # The context has 32 tokens: 8 windows of 4, and blocks of half of it.
    windows = (8, 5, 1) if "windows" in STACKS[stack] else (0,)
    for heads, ffns, activation, steps in itertools.product(range(1, 5), range(4), (0, 1), windows):
        gates = {
            "heads": torch.tensor([1.0] * heads + [0.0] * (4 - heads))[torch.randperm(4)],
            "ffns": torch.tensor([1.0] * ffns + [0.0] * (3 - ffns))[torch.randperm(3)],
            "activation": torch.tensor([float(activation)]),
            "windows": torch.tensor([1.0] * (steps - 1) + [0.0] + [1.0] * (7 - steps))[:7],
        }
        fields = {"attention_block": 16, "window": 4 * steps % 32} if steps else {}
        label = "SM+LN+G" if activation else "SM+LN"
        pruned = f"_i{3 - ffns}" if ffns < 3 else ""
        assert float(price.bytes_of(gates)) == bytes_of_label(
            label + pruned, heads, stack=stack, **fields
        )


def test_only_parts_with_gates_change_the_estimate():
    price = GatedPrice(network("SM+LN+G_i1").config.spec, ["activation"])
    assert float(price.bytes_of({"activation": torch.ones(1)})) == bytes_of_label("SM+LN+G_i1", 4)
    assert float(price.bytes_of({"activation": torch.zeros(1)})) == bytes_of_label("SM+LN_i1", 4)
    assert float(price.share({"activation": torch.ones(1)})) == 1.0


def test_its_gradient_is_that_of_finite_differences_and_equal_for_equal_parts():
    price = GatedPrice(network().config.spec, ALL[:3])
    torch.manual_seed(0)
    gates = {
        "heads": torch.tensor([0.9, 0.3, 0.7, 0.55], dtype=torch.float64),
        "ffns": torch.tensor([0.2, 0.95, 0.6], dtype=torch.float64),
        "activation": torch.tensor([0.4], dtype=torch.float64),
    }
    leaves = {name: gate.clone().requires_grad_() for name, gate in gates.items()}
    price.bytes_of(leaves).backward()
    for name, gate in gates.items():
        for index in range(len(gate)):
            step = torch.zeros_like(gate)
            step[index] = 1e-3
            up, down = (
                float(price.bytes_of({**gates, name: gate + sign * step})) for sign in (1, -1)
            )
            slope = (up - down) / 2e-3
            assert slope > 0
            assert float(leaves[name].grad[index]) == pytest.approx(slope, rel=1e-6)


def test_gates_of_windows_have_the_gradient_of_the_best_mean_saving():
    spec = network().config.spec
    price = GatedPrice(spec, ["windows"])
    prices = [
        mpc.simulate(spec.replace(window=4 * steps % 32), attention_block=16).comm_bytes
        for steps in range(1, 9)
    ]
    assert prices[4] == prices[7] > prices[3]  # two blocks of 16 see all with 17 tokens or more
    for kept in range(8):
        ones = [1.0] * kept + [0.0] * (7 - kept)
        gates = torch.tensor(ones, requires_grad=True)
        found = price.bytes_of({"windows": gates})
        found.backward()
        assert found.item() == prices[kept]
        above = min(kept, 6) + 1
        saving = max((prices[above] - prices[j]) / (above - j) for j in range(above))
        counts = [sum(prod for prod in _products(ones, n)) for n in range(7)]
        assert gates.grad.tolist() == pytest.approx([saving * each for each in counts], rel=1e-6)
        assert saving > 0


def _products(gates, changed):
    """The derivatives of the products of the first gates by one of them."""
    for last in range(changed, len(gates)):
        product = 1.0
        for place in range(last + 1):
            product *= 1.0 if place == changed else gates[place]
        yield product


def test_a_gate_pays_for_its_part_alone():
    price = GatedPrice(network().config.spec, ["ffns"])
    gates = {"ffns": torch.ones(3, requires_grad=True)}
    price.bytes_of(gates).backward()
    saved = bytes_of_label("SM+LN+G", 4) - bytes_of_label("SM+LN+G_i1", 4)
    assert gates["ffns"].grad.tolist() == pytest.approx([saved] * 3, rel=1e-6)


@pytest.mark.parametrize("label", LABELS)
def test_gates_at_1_change_nothing(label):
    model = network(label)
    # Scores to which zeros are added are summed in another order, and norms make more of it.
    for parts, off in ((ALL[:3], 1e-6), (ALL, 1e-3)):
        gated = with_gates(model, parts)
        torch.testing.assert_close(logits(gated), logits(model), rtol=0, atol=off)
        assert gated.config.gated_parts == parts and model.config.gated_parts is None


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("label", LABELS)
def test_the_selected_network_computes_what_the_gated_one_did(label, parallel):
    gated = with_gates(network(label, parallel_residual=parallel), ALL)
    set_gates(gated, heads=[0.0, 1.0, 0.0, 1.0], ffns=[1.0, 0.0, 1.0], activation=[0.0],
              windows=[1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0])  # fmt: skip
    left = selected(gated)
    assert left.config.window == 8
    assert left.transformer.gates is None
    assert (left.config.num_heads, left.config.head_dim) == (2, 8)
    assert left.config.layers_without_ffn == [1]
    assert left.config.ffn == "linear"
    torch.testing.assert_close(logits(left), logits(gated), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(left), logits(network(label, parallel_residual=parallel)))


def test_the_estimate_at_the_end_is_the_price_of_the_selected_network():
    gated = with_gates(network(), ALL)
    price = GatedPrice(gated.config.spec, ALL)
    set_gates(gated, heads=[0.0, 1.0, 1.0, 1.0], ffns=[0.0, 1.0, 0.0], activation=[1.0],
              windows=[1.0] * 4 + [0.0] * 3)  # fmt: skip
    estimate = price.bytes_of(gated.transformer.gates.by_name())
    left = selected(gated).config.spec
    assert estimate.item() == mpc.simulate(left, attention_block=16).comm_bytes
    assert left.window == 20


def test_gates_come_back_from_a_saved_network(tmp_path):
    gated = with_gates(network(), ALL)
    set_gates(gated, heads=[0.5, 1.0, 0.25, 1.0], ffns=[0.0, 0.125, 1.0], activation=[0.75])
    gated.save_pretrained(tmp_path)
    loaded = AeroForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(loaded), logits(gated))
    assert loaded.learned_scalars()["gate_ffns"] == [0.0, 0.125, 1.0]


def test_every_gate_has_a_gradient_from_the_text():
    gated = with_gates(network(), ALL).train()
    set_gates(gated, heads=[0.5] * 4, ffns=[0.5] * 3, activation=[0.5], windows=[0.5] * 7)
    gated(tokens(), labels=tokens()).loss.backward()
    for name, gate in gated.transformer.gates.by_name().items():
        assert bool((gate.grad != 0).all()), name


def gated(**gates):
    model = with_gates(network(), list(gates))
    set_gates(model, **gates)
    return model


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: selected(gated(ffns=[1.0, 0.5, 1.0])), ("0.5 in ffns",)),
        (lambda: selected(network()), ("gates",)),
        (lambda: selected(gated(heads=[0.0] * 4)), ("one head",)),
        (lambda: with_gates(gated(ffns=[1.0, 0.5, 1.0]), ["heads"]), ("no gates yet",)),
        *(
            (lambda label=label, parts=parts: with_gates(network(label), parts), (named,))
            for label, parts, named in (
                ("SM(t)+LN+G", ["heads"], "temperatures"),
                ("EReg(SM+LN+G)", ["heads"], "penalty"),
                ("SM+LN+G_i1", ["ffns"], "all its FFNs"),
                ("SM+ScFuFFN", ["activation"], "gelu or relu"),
                ("SM+LN+G", ["width"], "heads, ffns, activation, windows"),
                ("SM+LN+G+C8", ["windows"], "eight times the taps"),
                ("SM+LN+G", ["ffns", "ffns"], "once"),
                ("SM+LN+G", [], "one or more"),
            )
        ),
    ],
)
def test_gates_that_cannot_be_are_refused_with_the_reason(call, named):
    assert_refused(call, *named)
