"""Networks with convolutions along the tokens: they train, look back only, and cost a product."""

import math

import pytest
import torch

from aero import mpc
from aero.architecture import ArchitectureSpec

from .labels import FAMILIES, tiny

PLAIN = ["SM+ScFuFFN", "SM+FN+R", "SM+LN+R", "SM+LN+G"]
CONVOLUTIONS = ["C4", "D4", "S4"]


def varied(label, family="gpt2", **fields):
    """A network whose taps all count."""
    torch.manual_seed(0)
    model = tiny(label, family, **fields)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("convolution", ["", *CONVOLUTIONS])
@pytest.mark.parametrize("label", PLAIN)
def test_every_network_of_the_factorial_trains_and_uses_its_taps(label, convolution, heads):
    label = f"{label}+{convolution}".rstrip("+")
    model = tiny(label, num_heads=heads).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    tokens = torch.randint(256, (4, 32))
    taps = [block.convolution.weight for block in model.transformer.blocks() if convolution]
    start = [weight.detach().clone() for weight in taps]
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(tokens, labels=tokens).loss
        assert math.isfinite(loss.item())
        loss.backward()
        optimizer.step()
    for before, weight in zip(start, taps, strict=True):
        assert (weight != before).all(dim=-1).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("convolution", CONVOLUTIONS)
@pytest.mark.parametrize("label", [*PLAIN, "SM+FN+ScFFN"])
def test_a_changed_token_changes_no_earlier_logit_and_all_that_are_near(label, convolution, family):
    model = varied(f"{label}+{convolution}", family).eval()
    tokens = torch.randint(256, (2, 32))
    changed = tokens.clone()
    changed[:, 17] = (changed[:, 17] + 1) % 256
    with torch.no_grad():
        before, after = (model(ids, use_cache=False).logits for ids in (tokens, changed))
    assert torch.equal(before[:, :17], after[:, :17])
    assert ((before - after)[:, 17:21].abs().amax(dim=-1) > 0).all()


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_it_computes_in_bfloat16_under_autocast(convolution):
    model = varied(f"EReg(SM(t)+FN+R+{convolution})").train()
    tokens = torch.randint(256, (4, 32))
    with torch.autocast("cpu", torch.bfloat16):
        narrow = model(tokens, labels=tokens).loss
    narrow.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    with torch.no_grad():
        assert narrow.item() == pytest.approx(model(tokens, labels=tokens).loss.item(), rel=0.05)


def parts(label, stack):
    report = mpc.simulate(label, model="mini", stack=stack)
    return {kind: cost.comm_bytes for kind, cost in report.by_kind.items()}, report


@pytest.mark.parametrize("stack", [name for name in mpc.stack_names() if name != "spu-aby3"])
@pytest.mark.parametrize("convolution", CONVOLUTIONS)
@pytest.mark.parametrize("label", PLAIN)
def test_it_costs_a_wider_product_and_nothing_else(label, convolution, stack):
    (plain, before), (found, after) = (
        parts(each, stack) for each in (label, f"{label}+{convolution}")
    )
    part = "qkv/proj" if convolution == "S4" else "ffn"
    assert {kind for kind in plain if found[kind] != plain[kind]} == {part}
    assert plain[part] < found[part] < 4 * plain[part]
    # Beside an FFN of two layers there is one product more in each layer.
    is_apart = convolution == "C4" and label != "SM+ScFuFFN"
    more = len(after.operations) - len(before.operations)
    assert more == (6 if is_apart else 0)
    assert (after.rounds > before.rounds) == is_apart


def test_a_fused_ffn_with_taps_is_priced_as_the_product_of_as_many_inputs():
    # A linear layer from 4 * 128 channels to 128 is the second one of the FFN of this size.
    [apart] = {
        one.cost.comm_bytes
        for one in mpc.simulate("SM+LN+R", model="mini").operations
        if one.name == "FFN, out"
    }
    [joined] = {
        one.cost.comm_bytes
        for one in mpc.simulate("SM+ScFuFFN+C4", model="mini").operations
        if one.name == "FFN, fused"
    }
    assert joined == apart


def test_flops_count_the_matrices_of_a_full_convolution_alone():
    plain, full, depthwise = (
        ArchitectureSpec.from_label(f"SM+R{end}", model="mini").flops().ffn
        for end in ("", "+C4", "+D4")
    )
    assert full - plain == 6 * 3 * 2 * 128 * 128**2
    assert depthwise == plain
