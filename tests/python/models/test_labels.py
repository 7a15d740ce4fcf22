import math

import pytest
import torch

from aero.architecture import ArchitectureSpec
from aero.models.initialization import decay_parameter_names

from .labels import FAMILIES, LABELS, tiny


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", LABELS)
def test_parameter_count_of_the_spec_is_that_of_the_model(label, family):
    model = tiny(label, family)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == model.config.spec.parameter_count(training=True)
    assert model.config.spec.label == label


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", LABELS)
def test_ten_steps_lower_the_loss(label, family):
    model = tiny(label, family).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = torch.randint(256, (8, 32))
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        output = model(tokens, labels=tokens)
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(output.lm_loss.item())
    # Initial predictions are near uniform over the 256 tokens.
    assert losses[0] == pytest.approx(math.log(256), abs=0.1)
    diverged = label == "SM" and not math.isfinite(losses[-1])
    assert diverged or losses[-1] < losses[0] - 0.03


@pytest.mark.parametrize("label", LABELS)
def test_every_parameter_gets_a_gradient(label):
    model = tiny(label, threshold_init=0.2, tolerance_margin=0.0).train()
    tokens = torch.randint(256, (4, 32))
    model(tokens, labels=tokens).loss.backward()
    without = [name for name, p in model.named_parameters() if p.grad is None]
    assert without == []


def test_presets_have_the_sizes_of_their_models():
    assert tiny("SM+LN+G", vocab_size=97).lm_head.weight.shape == (97, 32)
    from aero.models import AeroConfig, AeroForCausalLM

    for name in ArchitectureSpec.preset_names():
        with torch.device("meta"):
            model = AeroForCausalLM(AeroConfig.from_label("EReg(SM(t)+ScFuFFN)", model=name))
        count = sum(parameter.numel() for parameter in model.parameters())
        assert count == model.config.spec.parameter_count(training=True)


def test_pruned_layers_have_no_feed_forward_module():
    blocks = tiny("SM+LN+ScFuFFN_i1").transformer.blocks()
    assert [block.mlp is None for block in blocks] == [False, True]
    assert [block.ln_2 is None for block in blocks] == [False, True]


def test_residual_projections_start_smaller_by_the_root_of_twice_the_depth():
    for family in FAMILIES:
        model = tiny("SM+LN+G", family, width=256, num_heads=4)
        block = model.transformer.blocks()[0]
        expected = 0.02 / math.sqrt(2 * 2)
        for projection in (block.attn.c_proj, block.mlp.c_proj):
            assert projection.weight.std().item() == pytest.approx(expected, rel=0.05)
        for layer in (block.attn.c_attn, block.mlp.c_fc, model.transformer.wte):
            assert layer.weight.std().item() == pytest.approx(0.02, rel=0.05)
    fused = tiny("SM+ScFuFFN", width=256, num_heads=4).transformer.blocks()[0].mlp
    assert fused.weight.std().item() == pytest.approx(expected, rel=0.05)


def test_skipless_blocks_start_as_the_identity_plus_a_tenth_of_the_ffn():
    block = tiny("SOTA:SM+ScFuFFN").transformer.blocks()[0]
    from aero.nn import SequenceContext

    x = torch.randn(2, 8, 32)
    output, entropy = block(x, SequenceContext())
    torch.testing.assert_close(output, x + 0.1 * block.mlp(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy[0, 0], torch.arange(1.0, 9).log())


@pytest.mark.parametrize("trainable", ["alpha+beta", "alpha", "beta", "none"])
def test_scales_are_trained_as_the_configuration_says(trainable):
    mlp = tiny("SM+ScFuFFN", trainable_scales=trainable).transformer.blocks()[0].mlp
    assert mlp.alpha.requires_grad == ("alpha" in trainable)
    assert mlp.beta.requires_grad == ("beta" in trainable)


def test_weight_decay_acts_on_matrices_only():
    model = tiny("EReg(SM(t)+LN+ScFuFFN)")
    names = decay_parameter_names(model)
    assert set(names) == {
        "transformer.wte.weight",
        "transformer.wpe.weight",
        *(
            f"transformer.h.{layer}.{weight}"
            for layer in range(2)
            for weight in ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.weight")
        ),
    }
    dynamic = decay_parameter_names(tiny("SM+Derf+ScFuFFN"))
    assert not any("ln_" in name for name in dynamic)
    shaped = decay_parameter_names(tiny("SOTA:SM(t:head)+WNFFN"))
    assert "transformer.h.0.mlp.c_fc.parametrizations.weight.original1" in shaped
    assert not any("original0" in name or "gamma" in name or "gain" in name for name in shaped)


def test_head_temperatures_and_thresholds_are_arrays_per_head():
    model = tiny("EReg(SM(t:head)+ScFuFFN)", temperature_init=0.5)
    temperatures = model.head_temperatures()
    assert [t.shape for t in temperatures] == [(2, 32)] * 2
    assert (temperatures[0] == 0.5).all()
    assert model.head_thresholds().tolist() == [[0.5, 0.5]] * 2
    log = tiny("SM(t)+G", temperature_init=0.25, temperature_parametrization="log")
    assert log.head_temperatures()[1] == pytest.approx(0.25)
    assert log.head_thresholds() is None
    assert tiny("SM+G").head_temperatures() is None
