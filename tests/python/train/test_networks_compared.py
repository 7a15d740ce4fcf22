"""Trained networks: as teachers, in fixed point, and in folders that may be damaged."""

import json
import math
import types
from dataclasses import replace
from pickle import UnpicklingError

import pytest
import torch
from safetensors import SafetensorError
from tests.python.refusals import assert_told
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, GPTNeoXConfig
from transformers.utils import logging as transformers_logging

from aero.fixed_point import Approximations
from aero.internals.errors import TrainingError
from aero.models import AeroConfig, AeroForCausalLM
from aero.saved import loading
from aero.train.distillation import Distillation, distillation_loss
from aero.train.runs import fixed_point_evaluation
from aero.train.runs.fixed_point_evaluation import FixedPointEvaluation, _Compared
from aero.train.runs.perplexity import HeldOutLoss
from aero.train.trainer import _damage_named


def test_a_teacher_sees_tokens_and_mask_and_keeps_no_cache():
    asked = []

    class Teacher(torch.nn.Linear):
        def forward(self, **given):
            asked.append(given)
            return types.SimpleNamespace(logits=torch.zeros(1, 3, 5))

    ids, mask = torch.tensor([[1, 2, 3]]), torch.ones(1, 3)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        logits = torch.randn(1, 3, 5, dtype=dtype)
        outputs = types.SimpleNamespace(logits=logits, loss=torch.tensor(2.0), lm_loss=1.5)
        inputs = {"input_ids": ids, "labels": ids, "position_ids": ids}
        taught = Distillation(Teacher(1, 1), temperature=2.0, weight=0.25)
        found = taught.loss(outputs, {**inputs, "attention_mask": mask}, 4)
        distance = distillation_loss(
            logits, torch.zeros(1, 3, 5), ids, temperature=2.0, num_items_in_batch=4
        )
        assert distance.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(found, 2.0 + 0.25 * (distance - 1.5))
        assert asked.pop() == {"input_ids": ids, "attention_mask": mask, "use_cache": False}
        taught.loss(outputs, inputs, None)
        assert asked.pop() == {"input_ids": ids, "use_cache": False}


def test_two_arithmetics_are_compared_over_all_their_logits():
    ids = torch.zeros(1, 2, dtype=torch.int64)
    exact = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    asked, shift = [], [0.0]

    def plain(**given):
        asked.append(given)
        return types.SimpleNamespace(logits=exact)

    def fixed(tokens):
        logits = exact.double() + torch.tensor([shift[0], 0.0, 0.0])
        return types.SimpleNamespace(logits=logits, tokens=tokens)

    compared = _Compared(torch.nn.Identity(), torch.nn.Identity())
    compared.exact, compared.fixed_point = torch.nn.Module(), torch.nn.Module()
    compared.exact.forward, compared.fixed_point.forward = plain, fixed
    for shift[0] in (2.0, -0.25):
        assert compared(ids).tokens is ids
    assert asked == [{"input_ids": ids, "use_cache": False}] * 2
    assert (compared.largest, compared.total, compared.logits) == (2.0, 4.5, 12)
    # Moved by 2 the first token leads at the second position too.
    assert (compared.changed, compared.positions) == (1, 4)


def test_a_comparison_is_told_as_text_and_as_json():
    approximations = Approximations.of_stack("spu-2024")
    exact, fixed = HeldOutLoss(2.0, 2000, 1), HeldOutLoss(4000.0, 2000, 1)
    found = FixedPointEvaluation("spu-2024", approximations, exact, fixed, 0.125, 0.03125, 0.0625)
    changed = replace(found, fields={"exp_squarings": 5, "truncation": "floor"})
    assert "under spu-2024, exp_squarings=5, truncation=floor, 1.001" in changed.to_text()
    assert found.to_text() == (
        f"perplexity {math.e**2:.3f} under spu-2024, 1.001 in floating point; largest logit "
        "difference 0.12, mean 0.031; 6.25% of the predictions change, on 2,000 tokens"
    )
    told = found.to_dict()
    assert told.pop("approximations")["fraction_bits"] == approximations.fraction_bits
    assert told == {
        "stack": "spu-2024", "perplexity": math.exp(2.0), "exact_perplexity": math.exp(0.001),
        "loss": 2.0, "exact_loss": 0.001, "largest_logit_difference": 0.125,
        "mean_logit_difference": 0.03125, "changed_predictions": 0.0625, "tokens": 2000,
    }  # fmt: skip


def test_a_comparison_measures_both_networks_on_the_same_windows(whole_runs, monkeypatch):
    asked, folder = [], whole_runs("SM+FN+R")

    def measured(network, tokens, starts, **options):
        asked.append((type(network).__name__, network.training, list(starts), options))
        if isinstance(network, _Compared):
            network.largest, network.total, network.logits = 0.5, 6.0, 3
            network.changed, network.positions = 1, 4
        return HeldOutLoss(float(len(asked)), 1, 1)

    monkeypatch.setattr(fixed_point_evaluation, "measure_loss", measured)
    found = fixed_point_evaluation.evaluate_run_in_fixed_point(
        folder.path, "spu-2024", max_tokens=48, stride=16, show_progress=True
    )
    for _, _, _, options in asked:
        options.pop("token_bytes")
    shared = {"context_length": 32, "batch_tokens": 2048, "stride": 16}
    # Two windows of 32 tokens, 16 apart, cover the 48 tokens that were asked for.
    assert asked == [
        ("AeroForCausalLM", False, [0, 16], {**shared, "show_progress": False}),
        ("_Compared", True, [0, 16], {**shared, "show_progress": True}),
    ]
    assert (found.exact.nll, found.fixed_point.nll, found.stack) == (1.0, 2.0, "spu-2024")
    assert (found.largest_logit_difference, found.mean_logit_difference) == (0.5, 2.0)
    assert found.changed_predictions == 0.25
    written = folder.path / "fixed_point.json"
    assert json.loads(written.read_text()) == json.loads(json.dumps(found.to_dict()))
    # As many tokens as after training, where no other number is asked for.
    fixed_point_evaluation.evaluate_run_in_fixed_point(folder.path, "spu-2024")
    assert {len(starts) for _, _, starts, _ in asked[2:]} == {1024 // 32}
    written.unlink()
    sums = folder.path / "SHA256SUMS"
    kept = [line for line in sums.read_text().splitlines() if "fixed_point" not in line]
    sums.write_text("".join(f"{line}\n" for line in kept))
    for options, message in (
        ({"stride": 33}, "evaluate: stride must be between 1 and 32, got 33"),
        ({"fields": {"no_such": 1}}, "no_such"),
    ):
        with pytest.raises(TrainingError, match=message):
            fixed_point_evaluation.evaluate_run_in_fixed_point(folder.path, "spu-2024", **options)


def test_a_comparison_by_several_processes_is_refused(tmp_path, monkeypatch):
    # They would share the windows, and each would keep the differences of its own alone.
    monkeypatch.setattr(fixed_point_evaluation, "rank_and_world", lambda: (0, 2))
    refusal = "^fixed point: one process must evaluate, got a process group of 2$"
    with pytest.raises(TrainingError, match=refusal):
        fixed_point_evaluation.evaluate_run_in_fixed_point(tmp_path, "spu-2024")


# --- networks in folders ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dropout"),
    [
        (GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9, attn_pdrop=0.5), "attn_pdrop"),
        (
            GPTNeoXConfig(
                num_hidden_layers=1, hidden_size=8, num_attention_heads=2, vocab_size=9,
                intermediate_size=16, attention_dropout=0.5, rotary_pct=1.0,
            ),
            "attention_dropout",
        ),
    ],
    ids=["gpt2", "pythia"],
)  # fmt: skip
def test_a_network_as_it_is_has_no_dropout_of_its_attention(kind, dropout, tmp_path):
    AutoModelForCausalLM.from_config(kind).save_pretrained(tmp_path)
    shown = transformers_logging.is_progress_bar_enabled()
    for enabled in (True, False):
        getattr(transformers_logging, f"{'en' if enabled else 'dis'}able_progress_bar")()
        network = loading.load_saved_network(tmp_path, as_it_is=True, dtype=torch.float32)
        assert transformers_logging.is_progress_bar_enabled() == enabled
    getattr(transformers_logging, f"{'en' if shown else 'dis'}able_progress_bar")()
    assert getattr(network.config, dropout) == 0.0
    assert type(network).__name__ in ("GPT2LMHeadModel", "GPTNeoXForCausalLM")
    plain = loading.load_saved_network(tmp_path)
    assert isinstance(plain, AeroForCausalLM)


def test_bars_are_hidden_for_folders_and_shown_for_downloads(tmp_path):
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.enable_progress_bar()
    for path, visible in ((tmp_path, False), ("some/name", True)):
        with pytest.raises(RuntimeError), loading._without_bars(path):
            assert transformers_logging.is_progress_bar_enabled() == visible
            raise RuntimeError
        assert transformers_logging.is_progress_bar_enabled()
    if not shown:
        transformers_logging.disable_progress_bar()


def test_files_that_cannot_be_a_network_are_told(tmp_path):
    sizes = {"n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 9, "n_positions": 8}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors, widest = 28, 32
    for name, value, most in (
        ("n_layer", tensors + 1, tensors),
        ("n_embd", widest + 1, widest),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, name: value}))
        with pytest.raises(TrainingError) as error:
            loading.load_saved_network(tmp_path)
        assert_told(error, tmp_path / "config.json", f"{name}: expected at most {most}", value)
    for name, value in (("n_layer", tensors), ("n_inner", widest), ("hidden_size", None)):
        (tmp_path / "config.json").write_text(json.dumps({**config, name: value}))
        loading._check_files(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.rename(tmp_path / "b.bin")
    (tmp_path / "a.pth").write_bytes(b"")
    with pytest.raises(TrainingError) as error:
        loading.load_saved_network(tmp_path)
    assert_told(error, tmp_path / "b.bin", "safetensors", "pickle", "save_pretrained")


@pytest.mark.parametrize("label", ["SM+ScFuFFN", "EReg(SM(t)+ScFuFFN)", "SM_i2"])
def test_a_width_that_no_ffn_has_is_held_to_no_weight(label, tmp_path):
    # 3 C = 96 is the largest size in the weights; the FFNs that were fused or pruned had 128.
    sizes = {"vocab_size": 40, "context_length": 16}
    AeroForCausalLM(AeroConfig.from_label(label, model="tiny", **sizes)).save_pretrained(tmp_path)
    assert isinstance(loading.load_saved_network(tmp_path), AeroForCausalLM)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for changed in (
        {"ffn": "gelu", "num_pruned_ffns": 0, "pruned_ffn_layers": None},
        {"width": 97},
    ):
        path.write_text(json.dumps({**config, **changed}))
        with pytest.raises(TrainingError, match="expected at most 96"):
            loading.load_saved_network(tmp_path)


def test_what_a_damaged_checkpoint_says_is_one_line():
    kinds = (OSError, ValueError, RuntimeError, EOFError, UnpicklingError, SafetensorError)
    for error in (kind("a") for kind in kinds):
        with pytest.raises(TrainingError) as found, _damage_named("/run/step-5"):
            raise error
        assert_told(found, "/run/step-5", "(a)", "delete")
    with pytest.raises(KeyError), _damage_named("x"):
        raise KeyError
