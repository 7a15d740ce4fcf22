"""PEFT models: the penalty goes through adapters in either order, `aero.entropies` through them."""

import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from transformers import Trainer, TrainingArguments

import aero
from aero.models import without_entropy_penalty

from .labels import tiny
from .stock_models import stock_model

TOKENS = torch.randint(1, 16, (4, 9), generator=torch.Generator().manual_seed(3))
PENALTY = {"weight": 0.5, "tokens": 32, "threshold": 0.1, "margin": 0.01}
SAVED = {"modules_to_save": ["entropy_penalty"]}
THRESHOLDS = "entropy_penalty.modules_to_save.default.threshold_bias"


def lora(model, targets=("c_attn",), **settings):
    torch.manual_seed(1)
    config = LoraConfig(
        r=2, target_modules=list(targets), fan_in_fan_out=True, init_lora_weights=False, **settings
    )
    return get_peft_model(model, config)


def penalty_first():
    return lora(aero.with_entropy_penalty(stock_model("gpt2", "sdpa"), **PENALTY), **SAVED).train()


def adapter_first():
    return aero.with_entropy_penalty(lora(stock_model("gpt2", "sdpa")), **PENALTY).train()


def trained(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("build", [penalty_first, adapter_first])
def test_both_orders_give_the_loss_and_the_gradients_of_the_whole_model(build):
    model = build()
    output = model(input_ids=TOKENS, labels=TOKENS)
    output.loss.backward()

    # The same network with the adapters in its weights.
    merged = lora(stock_model("gpt2", "sdpa")).merge_and_unload().requires_grad_(True).train()
    merged = aero.with_entropy_penalty(merged, **PENALTY)
    expected = merged(TOKENS, labels=TOKENS)
    expected.loss.backward()
    for name in ("loss", "lm_loss", "entropy_loss"):
        torch.testing.assert_close(getattr(output, name), getattr(expected, name))
    (name,) = (name for name in trained(model) if name.endswith(THRESHOLDS))
    thresholds = model.get_parameter(name)
    torch.testing.assert_close(
        thresholds.grad, merged.entropy_penalty.threshold_bias.grad, atol=1e-5, rtol=1e-4
    )
    assert thresholds.grad.abs().min() > 0
    # A rank-2 update B A of W has the gradient B^T dW of its A.
    layer = model.get_base_model().transformer.h[0].attn.c_attn
    whole = merged.transformer.h[0].attn.c_attn.weight.grad
    wanted = layer.scaling["default"] * (layer.lora_B["default"].weight.T @ whole.T)
    torch.testing.assert_close(layer.lora_A["default"].weight.grad, wanted, atol=1e-4, rtol=1e-3)
    assert all("lora_" in name or "threshold_bias" in name for name in trained(model))


def test_both_orders_train_alike_in_trainer_and_save_the_thresholds(tmp_path):
    found = []
    for build in (penalty_first, adapter_first):
        model = build()
        folder = tmp_path / build.__name__
        arguments = TrainingArguments(
            str(folder), max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True,
            optim="sgd", learning_rate=0.1, per_device_train_batch_size=4, logging_steps=1,
        )  # fmt: skip
        data = [{"input_ids": row, "labels": row} for row in TOKENS]
        callbacks = [aero.EntropyCallback(TOKENS)]
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=callbacks)
        trainer.train()
        log = next(log for log in trainer.state.log_history if "loss" in log)
        together = log["lm_loss"] + log["penalty_nats"]
        assert log["loss"] == pytest.approx(together, rel=1e-5)
        learned = model.get_base_model().entropy_penalty.threshold_bias.detach()
        assert (learned - 0.1).abs().min() > 0
        model.save_pretrained(folder / "adapter")
        base = aero.with_entropy_penalty(stock_model("gpt2", "sdpa"), **PENALTY)
        again = PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True).train()
        assert torch.equal(again.get_base_model().entropy_penalty.threshold_bias, learned)
        assert any(name.endswith(THRESHOLDS) for name in trained(again))
        found.append(again(input_ids=TOKENS, labels=TOKENS).loss)
    assert torch.equal(*found)


def test_frozen_thresholds_are_an_error_that_says_how_to_train_them():
    model = lora(aero.with_entropy_penalty(stock_model("gpt2", "sdpa"), **PENALTY)).train()
    with pytest.raises(ValueError, match=r"frozen the thresholds; .*modules_to_save=\['entropy_pe"):
        model(input_ids=TOKENS, labels=TOKENS)
    with torch.no_grad(), model.disable_adapter():
        model(input_ids=TOKENS, labels=TOKENS)
    # Without PEFT, who freezes them means it.
    alone = aero.with_entropy_penalty(stock_model("gpt2", "sdpa"), **PENALTY).train()
    alone.entropy_penalty.requires_grad_(False)
    alone(TOKENS, labels=TOKENS).loss.backward()


@pytest.mark.parametrize("build", [penalty_first, adapter_first])
def test_taken_away_nothing_of_the_penalty_is_left(build, tmp_path):
    model = build()
    assert without_entropy_penalty(model) is model
    assert not any("entropy_penalty" in name for name in model.state_dict())
    model.save_pretrained(tmp_path)
    PeftModel.from_pretrained(stock_model("gpt2", "sdpa"), tmp_path)(input_ids=TOKENS)


def test_entropies_look_through_adapters():
    model = lora(stock_model("gpt2", "sdpa"))
    merged = lora(stock_model("gpt2", "sdpa")).merge_and_unload()
    plain = aero.entropies(stock_model("gpt2", "sdpa"), TOKENS)
    found, expected = aero.entropies(model, TOKENS), aero.entropies(merged, TOKENS)
    for layer, wanted, without in zip(found.layers, expected.layers, plain.layers, strict=True):
        torch.testing.assert_close(layer, wanted, atol=1e-5, rtol=0)
        assert (layer - without).abs().max() > 0.01
    with model.disable_adapter():
        assert torch.equal(aero.entropies(model, TOKENS).layers[0], plain.layers[0])
    thresholds = aero.entropies(adapter_first(), TOKENS).thresholds
    assert thresholds.shape == (2, 4) and (abs(thresholds - 0.1) < 1e-6).all()
    own = lora(tiny("EReg(SM(t)+ScFuFFN)"))
    assert aero.entropies(own, TOKENS).thresholds.shape == (2, 2)


def test_learned_prompts_are_refused():
    prompts = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = get_peft_model(stock_model("gpt2", "sdpa"), prompts)
    for call in (lambda: aero.entropies(model, TOKENS), lambda: aero.with_entropy_penalty(model)):
        with pytest.raises(ValueError, match=r"PROMPT_TUNING puts tokens before .* such as LoRA"):
            call()
