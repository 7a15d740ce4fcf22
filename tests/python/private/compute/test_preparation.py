"""`aero.private.compute.preparation`: the folded network computes the same function."""

import numpy as np
import pytest

import aero
from aero.export.numpy_forward import forward, read_network
from aero.private.compute.preparation import fold_constants, with_blank_weights

from ...export.conftest import tokens, trained
from ...models.labels import FAMILIES, LABELS


def shapes(network):
    return network.description, {name: x.shape for name, x in network.tensors.items()}


def factors(network):
    """The constants that would cost a product or a truncation each."""
    for layer in network.description["layers"]:
        mlp = layer["feed_forward"]
        if mlp is not None:
            yield mlp["output_factor"]
            if layer["residual"] != "skipless":
                yield mlp["stream_factor"]


def assert_logits_are_kept(network, folded):
    expected = forward(network, tokens(1))
    # Float64 rounding, times the growth of a few dozen operations.
    assert np.abs(forward(folded, tokens(1)) - expected).max() <= 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", LABELS)
def test_folding_keeps_the_logits_of_every_label(label, family, tmp_path):
    network = read_network(aero.export_weights(trained(label, family), tmp_path))
    for fold_score_scale in (False, True):
        folded = fold_constants(network, fold_score_scale=fold_score_scale)
        assert_logits_are_kept(network, folded)
        assert set(factors(folded)) <= {1.0}
        assert folded.description["embedding_scale"] == 1.0
        for layer in folded.description["layers"]:
            norms = [norm["kind"] for norm in (layer["norm_1"], layer["norm_2"]) if norm]
            assert "diagonal" not in norms or layer["residual"] == "skipless"
            per_position = network.description["spec"]["temperature"] == "head_position"
            assert (layer["attention"]["inverse_temperature"] is not None) == per_position
            assert (layer["attention"]["score_scale"] == 1.0) == fold_score_scale
        # The other party comes to the same network from the description alone.
        blank = with_blank_weights(network.description)
        assert shapes(fold_constants(blank, fold_score_scale=fold_score_scale)) == shapes(folded)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", ["SM+LN+ScFuFFN", "SM+ScFFN", "SM+FN+ScFuFFN"])
@pytest.mark.parametrize("stream_factors", [(-0.5, 2.0), (0.0, 1.5), (1e-3, 3.0), (8.0, 8.0)])
def test_factors_that_would_cost_accuracy_stay_outside_the_weights(
    label, family, stream_factors, tmp_path
):
    network = read_network(aero.export_weights(trained(label, family), tmp_path))
    for layer, factor in zip(network.description["layers"], stream_factors, strict=True):
        layer["feed_forward"]["stream_factor"] = factor
    folded = fold_constants(network)
    assert_logits_are_kept(network, folded)
    kept = {0.0: [0.0, 1.0], 1e-3: [1e-3, 1.0], 8.0: [1.0, 8.0]}.get(stream_factors[0], [1.0, 1.0])
    assert [x["feed_forward"]["stream_factor"] for x in folded.description["layers"]] == kept


def test_scaled_embeddings_exact_gelu_pruned_layers_and_head_biases_are_kept(tmp_path):
    models = (
        trained("SM+LN+G", gelu_approximation="none", layer_norm_epsilon=1e-3),
        trained("SM+ScFuFFN_i1", pruned_ffn_layers=[0], embedding_scale=3.0),
        trained("SM+ScFuFFN", tied_embeddings=False),
        aero.fold_norm(trained("SM+FN+ScFuFFN")),
    )
    for number, model in enumerate(models):
        network = read_network(aero.export_weights(model, tmp_path / str(number)))
        assert_logits_are_kept(network, fold_constants(network))
