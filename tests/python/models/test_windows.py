"""Networks of a label whose queries see the last tokens alone, against the oracle in NumPy."""

import numpy as np
import pytest
import torch
from transformers import DynamicCache, StaticCache

import aero
from aero.architecture import ArchitectureSpec, size_names
from aero.conversion.selecting import with_gates
from aero.models import AeroConfig
from aero.network.files import read_network
from aero.network.numpy_reader import forward

from ..export.conftest import tokens, trained
from .labels import PYTHIA

WINDOW = 5
CASES = {
    "softmax-only": ("EReg(SM(t)+ScFuFFN)", {}),
    "baseline": ("SM+LN+G", {}),
    "convolution": ("SM+FN+R+C4", {}),
    "shift": ("SM+ScFuFFN+S4", {}),
    "rotary": ("SM+LN+G", PYTHIA),
}


def windowed(case="softmax-only", window=WINDOW, **overrides):
    label, family = CASES[case]
    return trained(label, **{**family, **overrides}, window=window)


@pytest.mark.parametrize("case", CASES)
def test_the_exported_network_has_the_same_logits_and_they_depend_on_the_window(case, tmp_path):
    model = windowed(case)
    ids = tokens()
    with torch.no_grad():
        found = model(ids).logits.numpy()
        model.config.window = 0
        whole = model(ids).logits.numpy()
    model.config.window = WINDOW
    aero.export_weights(model, tmp_path)
    network = read_network(tmp_path)
    windows = {
        one["window"] for entry in network.description["operations"]
        for one in entry.get("operations", ()) if one["op"] == "softmax"
    }  # fmt: skip
    assert windows == {WINDOW}
    # Rotary angles of the models are float32.
    off = np.abs(forward(network, ids.numpy()) - found).max() / np.abs(found).max()
    assert off < (1e-7 if case == "rotary" else 1e-9)
    assert np.allclose(found[:, :WINDOW], whole[:, :WINDOW])
    assert (np.abs(found - whole)[:, WINDOW:].max(axis=(0, 2)) > 1e-6).all()


@pytest.mark.parametrize("case", ["softmax-only", "rotary", "convolution"])
def test_later_tokens_by_every_cache_have_the_logits_of_one_pass(case):
    model = windowed(case)
    ids = tokens()
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        dynamic = DynamicCache(config=model.config)
        for start, end in ((0, 3), (3, 11), (11, 12), (12, 19)):
            found = model(ids[:, start:end], cache=dynamic).logits
            assert torch.allclose(found, expected[:, start:end], atol=1e-9)
        if case == "convolution":  # transformers' fixed caches hold no inputs of parts
            return
        static = StaticCache(config=model.config, max_cache_len=24)
        for start, end in ((0, 7), (7, 8), (8, 9)):
            places = torch.arange(start, end)[None].expand(2, -1)
            found = model(ids[:, start:end], cache=static, position_ids=places).logits
            assert torch.allclose(found, expected[:, start:end], atol=1e-9)


def test_padding_packed_sequences_and_masks_of_ones_own_keep_the_window():
    model = windowed()
    ids = tokens()
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        # Left padding hides its tokens and moves the others.
        padded = torch.cat([torch.zeros(2, 4, dtype=torch.long), ids], dim=1)
        seen = torch.cat([torch.zeros(2, 4, dtype=torch.long), torch.ones_like(ids)], dim=1)
        places = (seen.cumsum(-1) - 1).clamp(min=0)
        found = model(padded, attention_mask=seen, position_ids=places, use_cache=False).logits
        assert torch.allclose(found[:, 4:], expected, atol=1e-9)
        # Two sequences in one row.
        packed = torch.cat([ids[0], ids[1, :8]])[None]
        places = torch.cat([torch.arange(19), torch.arange(8)])[None]
        found = model(packed, position_ids=places, use_cache=False).logits
        assert torch.allclose(found[:, :19], expected[:1], atol=1e-9)
        assert torch.allclose(found[:, 19:], expected[1:, :8], atol=1e-9)
        # A causal mask of the caller's.
        causal = torch.ones(19, 19, dtype=torch.bool).tril()[None, None].expand(2, -1, -1, -1)
        found = model(ids, attention_mask=causal, use_cache=False).logits
        assert torch.allclose(found, expected, atol=1e-9)


def test_rows_see_as_many_keys_as_the_window_has():
    model = windowed(max_entropy="log_visible")
    ids = tokens()
    counted = torch.arange(1, 20).clamp(max=WINDOW)
    found = aero.entropies(model, ids, attention_maps=True)
    assert torch.equal(torch.as_tensor(found.visible_keys)[0, 0], counted)
    maps = torch.as_tensor(found.attention_maps[0])
    band = torch.ones(19, 19).tril() - torch.ones(19, 19).tril(-WINDOW)
    assert torch.equal((maps > 0).any(dim=1)[0], band.bool())
    assert (torch.as_tensor(found.layers[0]) <= counted.log() + 1e-6).all()
    # The penalty of a training step counts those keys.
    outputs = model.train()(ids, labels=ids)
    model.config.max_entropy = "log_context"
    assert outputs.entropy_loss != model(ids, labels=ids).entropy_loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_trains_and_generates(dtype):
    model = windowed().to(torch.float32).train()
    ids = tokens(4, 32)
    with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16):
        loss = model(ids, labels=ids).loss
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    written = model.eval().generate(ids[:1, :8], max_new_tokens=6, do_sample=False, pad_token_id=0)
    again = model.generate(ids[:1, :8], max_new_tokens=6, do_sample=False, pad_token_id=0,
                           use_cache=False)  # fmt: skip
    assert torch.equal(written, again)


def test_a_saved_network_keeps_its_window_and_an_older_file_has_none(tmp_path):
    model = windowed()
    model.save_pretrained(tmp_path)
    assert aero.AeroForCausalLM.from_pretrained(tmp_path).config.spec.window == WINDOW
    fields = ArchitectureSpec.from_label("SM", model="tiny").to_dict()
    del fields["window"]
    assert ArchitectureSpec.from_dict(fields).window == 0
    assert "window" in size_names()


def test_a_conversion_keeps_the_window():
    converted = aero.convert(windowed("baseline").float(), "SM+LN+R")
    assert converted.config.spec.window == WINDOW


@pytest.mark.parametrize(
    ("label", "window"), [("SOTA:SM+FN+R", 4), ("SM+ScFuFFN+C4", 3), ("SM", -1), ("SM", 1 << 30)]
)
def test_windows_that_no_network_can_have_are_refused(label, window):
    with pytest.raises(ValueError, match="window"):
        AeroConfig.from_label(label, model="tiny", window=window)


def test_it_compiles_in_one_piece_with_gates_on_windows_too():
    torch.manual_seed(0)
    ids = tokens(2, 32)
    own = aero.AeroForCausalLM(AeroConfig.from_label("SM+ScFuFFN", model="tiny", window=WINDOW))
    whole = aero.AeroForCausalLM(AeroConfig.from_label("SM+ScFuFFN", model="tiny"))
    for model in (own.train(), with_gates(whole, ["windows"]).train()):
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)(ids, labels=ids).loss
        compiled.backward()
        assert compiled.item() == pytest.approx(model(ids, labels=ids).loss.item(), rel=1e-5)
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
