"""Convolutions added to trained networks, folded, pruned, annealed; and what they rule out."""

import pytest
import torch

import aero
from aero.conversion import begin_annealing, convert, finish_annealing
from aero.models import AeroConfig, AeroForCausalLM
from aero.nn.annealed_modules import set_annealing_progress

from ..models.labels import FAMILIES
from .networks import aero_network, gpt2, logits_of, pythia, relative_difference, tokens

CONVOLUTIONS = ["C4", "D3", "S2"]


def trained(label, family="gpt2"):
    """In float64, with no weight at its start."""
    torch.manual_seed(1)
    overrides = {**FAMILIES[family], "context_length": 20, "vocab_size": 61}
    model = AeroForCausalLM(AeroConfig.from_label(label, model="tiny", **overrides)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        model.train()(tokens())
    return model.eval()


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
@pytest.mark.parametrize("source", [gpt2, pythia])
def test_an_added_one_leaves_the_function_at_the_start(source, convolution):
    model = source()
    converted = convert(model, f"SM+LN+G+{convolution}")
    assert converted.config.spec.label == f"SM+LN+G+{convolution}"
    assert "add_convolution (exact)" in converted.config.conversion_steps[-1]
    assert relative_difference(logits_of(converted, tokens()), logits_of(model, tokens())) < 1e-5


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_its_way_to_softmax_only_is_that_without_it(convolution):
    model = aero_network("SM+LN+G")
    plain, found = (convert(model, f"SM+ScFuFFN{end}") for end in ("", f"+{convolution}"))
    assert torch.equal(logits_of(plain, tokens()), logits_of(found, tokens()))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("convolution", CONVOLUTIONS)
@pytest.mark.parametrize("ffn", ["R", "ScFuFFN", "ScFFN_i1"])
def test_foldable_norms_go_into_the_weights_of_every_tap(ffn, convolution, family):
    ffn, _, pruned = ffn.partition("_")
    label = f"+{ffn}+{convolution}" + (f"_{pruned}" if pruned else "")
    model = trained(f"SM+FN{label}", family)
    folded = aero.fold_norm(model)
    assert folded.config.spec.label == f"SM{label}"
    assert relative_difference(logits_of(folded, tokens()), logits_of(model, tokens())) < 1e-12


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_two_linear_layers_fuse_beside_it(convolution):
    model = trained(f"SM+FN+ScFFN+{convolution}")
    fused = aero.fuse_ffn(model)
    assert fused.config.spec.label == f"SM+FN+ScFuFFN+{convolution}"
    assert relative_difference(logits_of(fused, tokens()), logits_of(model, tokens())) < 1e-12


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_a_pruned_ffn_takes_its_convolution_along_but_attention_keeps_its_own(convolution):
    pruned = aero.prune_ffn(trained(f"SM+FN+R+{convolution}"), layers=[0])
    kept = ["convolution" in block.parts() for block in pruned.transformer.blocks()]
    assert kept == [convolution == "S2", True]
    count = sum(parameter.numel() for parameter in pruned.parameters())
    assert count == pruned.config.spec.parameter_count(training=True)


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_annealing_begins_with_the_outputs_and_ends_with_the_label(convolution):
    model = aero_network("SM+LN+G").eval()
    network = begin_annealing(model, f"SM+ScFuFFN+{convolution}_i1")
    assert relative_difference(logits_of(network, tokens()), logits_of(model, tokens())) < 1e-5
    with torch.no_grad():
        for block in network.transformer.blocks():
            for part in block.parts().values():
                part.weight += 0.1
    set_annealing_progress(network, 1.0)
    found = finish_annealing(network)
    assert found.config.spec.label == f"SM+ScFuFFN+{convolution}_i1"
    assert relative_difference(logits_of(found, tokens()), logits_of(network, tokens())) < 1e-4


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_a_trained_one_is_annealed_along_with_its_network(convolution):
    model = trained(f"SM+LN+G+{convolution}")
    network = begin_annealing(model, f"SM+FN+R+{convolution}")
    assert relative_difference(logits_of(network, tokens()), logits_of(model, tokens())) < 1e-12


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda: aero.absorb_ffn(trained("SM+ScFuFFN+C4")), "absorb_ffn: .* has a convolution"),
        (lambda: aero.absorb_ffn(trained("SM+ScFuFFN+S4")), "absorb_ffn: .* has a convolution"),
        (lambda: aero.fold_layernorm(trained("SM+LN+R+D4")), "fold_layernorm: .* a convolution"),
        (lambda: convert(trained("SM+LN+R+C4"), "SM+R+C4"), "fold_layernorm: .* a convolution"),
        (lambda: convert(trained("SM+R+C4"), "SM+R"), "add_convolution: .* stays as it is"),
        (lambda: convert(trained("SM+R+C4"), "SM+R+C8"), "add_convolution: .* stays as it is"),
        (lambda: convert(trained("SM+R+C4"), "SM+R+D4"), "add_convolution: .* stays as it is"),
        (lambda: convert(gpt2(), "SM+LN+G+C4", inplace=True), "in place: .* has a convolution"),
        (lambda: begin_annealing(trained("SM+LN+G+C4"), "SM+FN+R"), "neither changed nor pruned"),
        (lambda: begin_annealing(trained("SM+LN+G+C4"), "SM+R+C4_i1"), "neither changed nor"),
    ],
)
def test_what_a_convolution_rules_out_is_refused(step, message):
    with pytest.raises(ValueError, match=message) as error:
        step()
    assert "\n" not in str(error.value)
