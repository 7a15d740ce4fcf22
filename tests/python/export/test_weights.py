"""`aero.export_weights` and the NumPy forward pass that reads it."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
import torch
from transformers import GPTNeoConfig, GPTNeoForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

import aero
from aero.network import numpy_reader
from aero.network.description import operations_of
from aero.network.files import read_description, read_network
from aero.nn.annealed_modules import AnnealedNorm
from aero.reading import UnreadableFileError

from ..models.labels import FAMILIES, LABELS
from .conftest import tokens, trained


def assert_logits_are_reproduced(model, folder, tolerance):
    network = read_network(aero.export_weights(model, folder))
    with torch.no_grad():
        expected = model(tokens()).logits.double().numpy()
    got = numpy_reader.forward(network, tokens().numpy())
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()
    # Every tensor is used: changing any of them changes the logits.
    for name, tensor in network.tensors.items():
        changed = {**network.tensors, name: tensor * 1.5 + 0.1}
        other = numpy_reader.Network(network.description, changed)
        assert not np.array_equal(numpy_reader.forward(other, tokens()[:1, :5]), got[:1, :5]), name
    return network


def fields(network, name):
    """The values of a field in the order of the operations that have it."""
    return [one.fields[name] for one in network.operations() if name in one.fields]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", LABELS)
def test_numpy_reproduces_the_logits_of_every_label(label, family, tmp_path):
    # In float64 only Pythia's table of angles is float32: off by 2^-24 of angles up to 19.
    tolerance = 1e-12 if family == "gpt2" else 50 * 2.0**-24
    assert_logits_are_reproduced(trained(label, family), tmp_path, tolerance)


@pytest.mark.parametrize("label", ["SM+LN+G", "SM+ScFuFFN_i1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_weights_are_kept_exactly(label, dtype, tmp_path):
    model = trained(label, dtype=dtype)
    aero.export_weights(model, tmp_path / "narrow")
    weights = safetensors.numpy.load_file(tmp_path / "narrow" / "weights.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {np.dtype("float32")}
    wide = assert_logits_are_reproduced(model.double(), tmp_path, 1e-12)
    assert all(np.array_equal(wide.tensors[name], tensor) for name, tensor in weights.items())


def test_temperatures_are_inverted_one_per_head_and_position(tmp_path):
    for shape in ("SM(t)", "SM(t:head)", "SM(t:scalar)"):
        model = trained(f"{shape}+ScFuFFN", temperature_parametrization="log")
        network = assert_logits_are_reproduced(model, tmp_path, 1e-12)
        got = network.tensors["layers.1.attention.inverse_temperature"]
        np.testing.assert_allclose(got, 1 / model.head_temperatures()[1], rtol=1e-6)
        assert got.shape == (2, 32)


def test_folded_and_absorbed_networks_and_head_biases_come_along(tmp_path):
    model = trained("SM+FN+ScFuFFN")
    running = assert_logits_are_reproduced(model, tmp_path / "running", 1e-12)
    assert "diagonal" in fields(running, "kind")
    folded = aero.fold_norm(model)
    network = assert_logits_are_reproduced(folded, tmp_path / "folded", 1e-12)
    assert fields(network, "kind") == []
    assert fields(network, "transposed")[-1] is False
    absorbed = aero.conversion.absorb_ffn(folded, max_condition=1e6).model
    network = assert_logits_are_reproduced(absorbed, tmp_path / "absorbed", 1e-12)
    assert not any(one.name.startswith("FFN") for one in network.operations())
    with_bias = trained("SM+ScFuFFN", tied_embeddings=False)
    with_bias.lm_head.bias = torch.nn.Parameter(torch.rand(256, dtype=torch.float64))
    network = assert_logits_are_reproduced(with_bias, tmp_path / "bias", 1e-12)
    assert [*network.operations()][-1].weights["bias"] == "head.bias"


def test_pruned_layers_in_the_middle_and_exact_gelu_come_along(tmp_path):
    model = trained("SM+LN+G", gelu_approximation="none", layer_norm_epsilon=1e-3)
    network = assert_logits_are_reproduced(model, tmp_path, 1e-12)
    assert fields(network, "function") == ["gelu_erf", "gelu_erf"]
    model = trained("SM+ScFuFFN_i1", pruned_ffn_layers=[0], embedding_scale=3.0)
    network = assert_logits_are_reproduced(model, tmp_path, 1e-12)
    assert [one.layer for one in network.operations() if one.name == "FFN, fused"] == [1]


def test_foreign_networks_are_exported_too(tmp_path):
    config = GPTNeoXConfig(
        vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=32, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    pythia = GPTNeoXForCausalLM(config).double().eval()
    assert_logits_are_reproduced(pythia, tmp_path, 1e-6)
    sizes = {"vocab_size": 8, "hidden_size": 8, "num_layers": 1, "num_heads": 2}
    neo = GPTNeoForCausalLM(GPTNeoConfig(**sizes, attention_types=[[["global"], 1]]))
    with pytest.raises(ValueError, match="GPTNeoForCausalLM"):
        aero.export_weights(neo, tmp_path)


def test_networks_that_are_still_annealed_are_refused(tmp_path):
    model = trained("SM+LN+G")
    model.transformer.ln_f = AnnealedNorm(model.transformer.ln_f, None)
    with pytest.raises(ValueError, match="in the middle of an annealing; train it to the end"):
        aero.export_weights(model, tmp_path)


def test_the_description_says_what_the_files_hold(tmp_path):
    aero.export_weights(trained("EReg(SM(t)+LN+G)", "pythia"), tmp_path)
    described = json.loads((tmp_path / "network.json").read_text())
    weights = safetensors.numpy.load_file(tmp_path / "weights.safetensors")
    assert described["tensors"] == {
        name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype)}
        for name, tensor in weights.items()
    }
    assert described["label"] == "EReg(SM(t)+LN+G)"
    assert aero.ArchitectureSpec.from_dict(described["spec"]).label == described["label"]
    operations = [*operations_of(described)]
    scores = next(one for one in operations if one.op == "scores")
    assert scores["scale"] == 1 / math.sqrt(scores["head_dim"])
    assert not any("threshold" in name for name in weights)
    # Every word that stands for a way to compute is explained.
    for one in operations:
        words = [one.fields[name] for name in ("kind", "function") if name in one.fields]
        assert all(word in described["meaning"][one.op] for word in words)


def test_files_of_two_exports_are_never_joined(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    aero.export_weights(trained("SM+ScFuFFN"), one)
    aero.export_weights(trained("SM+G"), two)
    (one / "weights.safetensors").write_bytes((two / "weights.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"is not the file that network\.json describes"):
        read_network(one)
    described = json.loads((two / "network.json").read_text())
    for version, found in ((1, "version 1, which an earlier"), (3, r"\('aero-network', 3\)")):
        (two / "network.json").write_text(json.dumps({**described, "version": version}))
        with pytest.raises(ValueError, match=f"expected an aero-network 2, got {found}"):
            read_network(two)
    assert not [path for path in one.iterdir() if path.name.startswith(".")]


def test_tokens_that_do_not_fit_are_refused(tmp_path):
    network = read_network(aero.export_weights(trained("SM"), tmp_path))
    for shape in ([3], [1, 33]):
        with pytest.raises(ValueError, match=r"token_ids must be \[B, T\] with T <= 32, got"):
            numpy_reader.forward(network, np.zeros(shape, dtype=int))
    assert numpy_reader.forward(network, np.zeros((2, 32), dtype=int)).shape == (2, 32, 256)
    # NumPy would take -1 for the last.
    for unknown in (-1, 256):
        with pytest.raises(ValueError, match=rf"from 0 to 255, the vocabulary, got {unknown}$"):
            numpy_reader.forward(network, [[255, unknown]])


def test_numpy_needs_no_torch(tmp_path):
    model = trained("EReg(SM(t)+FN+R)", "pythia")
    aero.export_weights(model, tmp_path)
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from aero.network import numpy_reader\n"
        "from aero.network.files import read_network\n"
        f"network = read_network({str(tmp_path)!r})\n"
        "print(repr(numpy_reader.forward(network, [[1, 2, 3]])[0, -1, 7]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        expected = model(torch.tensor([[1, 2, 3]])).logits[0, -1, 7].item()
    printed = done.stdout.strip().removeprefix("np.float64(").removesuffix(")")
    assert float(printed) == pytest.approx(expected, rel=1e-5)


def test_a_folder_without_a_description_is_named(tmp_path):
    with pytest.raises(UnreadableFileError, match=r"network\.json: cannot be read: No such file"):
        read_description(tmp_path)
