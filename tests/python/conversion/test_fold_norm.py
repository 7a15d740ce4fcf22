import pytest
import torch

from aero.conversion import convert, fold_norm
from aero.models import AeroConfig, AeroForCausalLM

from .networks import PYTHIA


def _trained(label, **overrides):
    """A network after a few steps: its statistics and gains are not those of the start."""
    model = AeroForCausalLM(AeroConfig.from_label(label, model="tiny", **overrides)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(256, (4, 32))
    for _ in range(5):
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval(), tokens


@pytest.mark.parametrize("family", [{}, PYTHIA], ids=["gpt2", "pythia"])
@pytest.mark.parametrize(
    ("label", "folded_label"),
    [
        ("SM+FN+ScFuFFN", "SM+ScFuFFN"),
        ("SM+FN(scalar)+ScFuFFN", "SM+ScFuFFN"),
        ("SM+FN+R", "SM+R"),
        ("SM+FN(scalar)+R", "SM+R"),
        ("SM+FN+FuFFN_i1", "SM+FuFFN_i1"),
        ("EReg(SM(t)+FN+ScFFN)", "EReg(SM(t)+ScFFN)"),
        ("SM+FN+LR(global)", "SM+LR(global)"),
        ("SM+FN+WNFFN(qkvo+ffn)", "SM"),
        ("SM+FN+SNFFN(qk)", "SM"),
    ],
)
def test_folding_is_exact(label, folded_label, family):
    model, tokens = _trained(label, **family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    folded = fold_norm(model)
    with torch.no_grad():
        expected, actual = model(tokens).logits, folded(tokens).logits
    # Folding rounds every weight once: a few float32 roundings per layer, 1e-7 each.
    assert (actual - expected).norm() <= 1e-5 * expected.norm()
    spec = folded.config.spec
    assert (spec.label, spec.norm, spec.final_norm) == (folded_label, "none", "none")
    assert not spec.tied_embeddings
    assert folded.lm_head.weight is not folded.transformer.wte.weight
    assert sum(p.numel() for p in folded.parameters()) == spec.parameter_count(training=True)
    assert not folded.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize(
    ("label", "final_norm", "folded_label", "folded_final_norm"),
    [
        ("SM+FN+R", "foldable", "SM+R", "none"),
        ("SM+FN(scalar)+ScFuFFN", "foldable", "SM+ScFuFFN", "none"),
        ("SM+FN+R", "layer", "SM+R", "layer"),
        ("SM+LN+G", "foldable", "SM+LN+G", "none"),
    ],
)
def test_convert_folds_the_norms_that_the_target_lacks(
    label, final_norm, folded_label, folded_final_norm
):
    model, tokens = _trained(label, final_norm=final_norm)
    folded = convert(model, folded_label, final_norm=folded_final_norm)
    assert folded.config.spec.label == folded_label
    assert folded.config.spec.final_norm == folded_final_norm
    with torch.no_grad():
        assert torch.equal(folded(tokens).logits, fold_norm(model)(tokens).logits)
    (other,) = {"layer", "foldable"} - {final_norm}
    with pytest.raises(ValueError, match="but none can be added"):
        convert(model, folded_label, final_norm=other)


def test_a_folded_network_is_saved_and_loaded(tmp_path):
    model, tokens = _trained("SM+FN+ScFuFFN")
    folded = fold_norm(model)
    folded.save_pretrained(tmp_path)
    loaded = AeroForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens).logits, folded(tokens).logits)


def test_only_the_final_norm_folds_into_the_head():
    model, tokens = _trained("SM+LN+G", final_norm="foldable")
    folded = fold_norm(model)
    assert (folded.config.spec.norm, folded.config.spec.final_norm) == ("layer", "none")
    torch.testing.assert_close(folded(tokens).logits, model(tokens).logits)


def test_a_layer_norm_at_the_end_stays():
    model, tokens = _trained("SM+FN+R", final_norm="layer")
    folded = fold_norm(model)
    assert (folded.config.spec.norm, folded.config.spec.final_norm) == ("none", "layer")
    assert folded.lm_head.weight is folded.transformer.wte.weight
    torch.testing.assert_close(folded(tokens).logits, model(tokens).logits)
