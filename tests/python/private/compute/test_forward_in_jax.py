"""The JAX forward pass follows `network.json`, for every kind of network."""

import pytest

import aero

from ...export.conftest import trained
from ...models.labels import FAMILIES, LABELS

pytestmark = pytest.mark.private


def exports(folder):
    for family in FAMILIES:
        for number, label in enumerate(LABELS):
            aero.export_weights(trained(label, family), folder / f"{family}-{number}")
    others = {
        "exact-gelu": trained("SM+LN+G", gelu_approximation="none", layer_norm_epsilon=1e-3),
        "pruned": trained("SM+ScFuFFN_i1", pruned_ffn_layers=[0], embedding_scale=3.0),
        "folded": aero.fold_norm(trained("SM+FN+ScFuFFN")),
        "absorbed": aero.absorb_ffn(trained("SM+ScFuFFN")).model,
        "wide-heads": trained("SM+LN+G", head_dim=24, tied_embeddings=False),
    }
    for name, model in others.items():
        aero.export_weights(model, folder / name)
    return 2 * (len(FAMILIES) * len(LABELS) + len(others))


def test_plain_jax_gives_the_logits_of_every_network(run_private, tmp_path):
    count = exports(tmp_path)
    found = run_private("plain_forward_program.py", tmp_path)
    assert len(found) == count
    # Float32 rounding, 2^-24, times the growth of sums over 32 to 256 products in a dozen
    # operations, more where position temperatures stretch the scores.
    assert max(off for off, _ in found.values()) < 200 * 2.0**-24
    assert all(same for _, same in found.values())
