"""Folders that `transformers` loads with `trust_remote_code`, without this package."""

import importlib
import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from aero.architecture import ArchitectureSpec
from aero.export import export_remote_code
from aero.models import AeroForCausalLM

from .conftest import tokens, trained

# Every kind of part: norms, activations, fused and normalized weights, temperatures, rotary and
# shaped attention, convolutions, a window.
NETWORKS = {
    "baseline": ("SM+LN+G", "gpt2"),
    "aero": ("EReg(SM(t)+FN+ScFuFFN_i1)", "pythia"),
    "slopes": ("EReg(SM(t:head)+LR(global))", "gpt2"),
    "shaped": ("SOTA:SM+SNFFN(qkvo+ffn)", "gpt2"),
    "weight-norm": ("SM+WNFFN(qkv+ffn)", "pythia"),
    "dynamic": ("SM+Derf+ScFuFFN", "gpt2"),
    "convolution": ("SM+LN+R+C3", "gpt2"),
    "depthwise": ("SM+FN+ScFuFFN+D4", "pythia"),
    "window": ("SM(t)+LN+R", "gpt2"),
}
SIZES = {"window": {"window": 5}}

PROGRAM = """
import json, sys, warnings
sys.modules["aero"] = None
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

folder, names = sys.argv[1], sys.argv[2:]
ids = torch.load(f"{folder}/ids.pt")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for name in names:
        load = {"trust_remote_code": True, "dtype": torch.float64}
        model = AutoModelForCausalLM.from_pretrained(f"{folder}/{name}", **load)
        with torch.no_grad():
            output = model(ids, labels=ids)
        found = {"logits": output.logits, "entropies": output.entropies}
        found["generated"] = model.generate(ids[:, :5], max_new_tokens=6, do_sample=False)
        try:
            model(ids + 1000)
        except ValueError as error:
            found["unknown"] = str(error)
        found["loss"] = model.train()(ids, labels=ids).loss
        found["loss"].backward()
        found["gradients"] = [parameter.grad for parameter in model.parameters()]
        torch.save(found, f"{folder}/{name}.pt")
assert AutoConfig.from_pretrained(f"{folder}/baseline", trust_remote_code=True).num_layers == 2
assert len(AutoModel.from_pretrained(f"{folder}/baseline", trust_remote_code=True).h) == 2
# By this name Trainer shifts smoothed labels.
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as known
assert known["aero"] == "AeroForCausalLM"
print(json.dumps([str(warning.message) for warning in said]))
"""


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Folder of the exported networks and the program's results, and its output."""
    folder = tmp_path_factory.mktemp("remote")
    for name, network in NETWORKS.items():
        export_remote_code(trained(*network, **SIZES.get(name, {})), folder / name)
    torch.save(tokens(), folder / "ids.pt")
    environment = {**os.environ, "HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), *NETWORKS],
        capture_output=True, text=True, timeout=300, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_is_the_same_without_the_package(name, networks):
    folder, _ = networks
    found = torch.load(folder / f"{name}.pt")
    model = trained(*NETWORKS[name], **SIZES.get(name, {}))
    with torch.no_grad():
        output = model(tokens(), labels=tokens())
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(found["logits"], output.logits, **close)
    torch.testing.assert_close(found["entropies"], output.entropies, **close)
    made = model.generate(tokens()[:, :5], max_new_tokens=6, do_sample=False)
    assert torch.equal(found["generated"], made)
    assert found["unknown"].endswith(f"from 0 to 255, the vocabulary, got {tokens().max() + 1000}")
    loss = model.train()(tokens(), labels=tokens()).loss
    loss.backward()
    torch.testing.assert_close(found["loss"], loss, **close)
    gradients = [parameter.grad for parameter in model.parameters()]
    for ours, theirs in zip(gradients, found["gradients"], strict=True):
        assert (theirs - ours).abs().max() <= 1e-9 * ours.abs().max() + 1e-12


def test_loading_says_which_operators_run(networks):
    (said,) = {text for text in networks[1] if "AERO" in text}
    assert "reference operators in plain PyTorch" in said
    assert "`import aero` before loading takes the fused operators" in said


def test_with_the_package_the_folder_is_one_of_ours(networks):
    folder, _ = networks
    with torch.no_grad():
        for arguments in ({}, {"trust_remote_code": True}):
            model = AutoModelForCausalLM.from_pretrained(folder / "aero", **arguments)
            assert type(model) is AeroForCausalLM


def test_the_plain_architecture_has_the_fields_and_defaults_of_ours(networks, monkeypatch):
    monkeypatch.syspath_prepend(networks[0] / "baseline")
    architecture = importlib.import_module("aero_architecture")
    ours = ArchitectureSpec.from_label("SM+LN+G", model="mini").to_dict()
    assert architecture.ArchitectureSpec().to_dict() == ours
    assert architecture.ArchitectureSpec.from_dict(ours).replace(width=64).width == 64
    with pytest.raises(ValueError, match="'SM\\+G' are read by aero-torch; install it"):
        architecture.ArchitectureSpec.from_label("SM+G", model="mini")


def test_no_file_imports_the_package(networks):
    folder, _ = networks
    for path in (folder / "aero").glob("*.py"):
        source = path.read_text()
        assert source.startswith("# From aero-torch ")
        for line in source.splitlines():
            assert not line.lstrip().startswith(("from aero", "import aero")), path.name


def test_a_gpt2_is_exported_as_the_aero_network_it_is(tmp_path):
    config = GPT2Config(
        vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    export_remote_code(GPT2LMHeadModel(config), tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.spec.label == "SM+LN+G"
