"""Converted blocks within the model they came from: its own forward and tools go on working."""

import copy

import pytest
import torch
from transformers import Trainer, TrainingArguments

import aero
from aero.conversion import convert
from aero.models import AeroForCausalLM
from aero.nn import DropInBlock, Temperature

from .networks import (
    CONTEXT,
    HUGGING_FACE,
    VOCABULARY,
    aero_network,
    gpt2,
    logits_of,
    nano_gpt,
    pythia,
    relative_difference,
    tokens,
)

SOURCES = {**HUGGING_FACE, "nanogpt": nano_gpt, "nanogpt, no biases": lambda: nano_gpt(bias=False)}
LABELS = ["SM+LN+R", "SM+FN+ScFuFFN", "EReg(SM(t)+ScFuFFN_i1)", "SM+LR(layer)_i3"]


def _with_temperatures(*models):
    """Gives the temperatures of every model the same values, another one at each position."""
    for model in models:
        for module in model.modules():
            if isinstance(module, Temperature):
                with torch.no_grad():
                    module.value.copy_(torch.linspace(0.3, 2, CONTEXT).expand(3, CONTEXT))


def _without_penalty(label):
    """The loss of nanoGPT has no place for it."""
    return label.removeprefix("EReg(").removesuffix(")") if label.startswith("EReg") else label


def _padded(side):
    mask = torch.ones(2, CONTEXT, dtype=torch.long)
    mask[0, :6] = 0
    return mask if side == "left" else mask.flip(1)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("label", LABELS)
def test_the_models_own_forward_gives_what_the_new_network_gives(source, label):
    label = _without_penalty(label) if source.startswith("nanogpt") else label
    model = SOURCES[source]()
    network = convert(model, label)
    changed = convert(model, label, inplace=True)
    assert changed is model
    # The same operators on the same weights; sums over positions may be ordered otherwise.
    assert relative_difference(logits_of(model, tokens()), logits_of(network, tokens())) < 1e-5
    blocks = [module for module in model.modules() if isinstance(module, DropInBlock)]
    assert len(blocks) == 3
    expected = network(tokens()).entropies
    for block, entropy in zip(blocks, expected, strict=True):
        torch.testing.assert_close(block.entropy, entropy, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("source", HUGGING_FACE)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_masks_and_recorded_outputs_reach_the_blocks(source, side):
    model = HUGGING_FACE[source]()
    network = convert(model, "EReg(SM(t)+ScFuFFN_i1)")
    convert(model, "EReg(SM(t)+ScFuFFN_i1)", inplace=True)
    _with_temperatures(model, network)
    mask = _padded(side)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    options = {
        "attention_mask": mask,
        "position_ids": positions,
        "output_attentions": True,
        "output_hidden_states": True,
    }
    actual, expected = model(tokens(), **options), network(tokens(), **options)
    torch.testing.assert_close(actual.logits[mask.bool()], expected.logits[mask.bool()])
    assert len(actual.attentions) == 3 and len(actual.hidden_states) == 4
    for kind in ("attentions", "hidden_states"):
        for one, other in zip(getattr(actual, kind), getattr(expected, kind), strict=True):
            visible = mask.bool()
            if kind == "attentions":
                one, other = one.transpose(1, 2), other.transpose(1, 2)
            torch.testing.assert_close(one[visible], other[visible], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("source", HUGGING_FACE)
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_generation_with_the_models_own_cache_gives_the_same_tokens(source, options):
    model = HUGGING_FACE[source]()
    network = convert(model, "SM(t)+ScFuFFN")
    convert(model, "SM(t)+ScFuFFN", inplace=True)
    _with_temperatures(model, network)
    prompt, mask = tokens(2, 7), torch.ones(2, 7, dtype=torch.long)
    mask[1, :3] = 0
    generated = [
        each.generate(
            prompt,
            attention_mask=mask,
            max_new_tokens=9,
            do_sample=False,
            pad_token_id=0,
            **options,
        )
        for each in (network, model)
    ]
    assert torch.equal(*generated)


@pytest.mark.parametrize("source", HUGGING_FACE)
def test_padding_takes_no_part_in_the_statistics_of_foldable_norms(source):
    model = HUGGING_FACE[source]()
    network = convert(model, "SM+FN+R").train()
    convert(model, "SM+FN+R", inplace=True).train()
    for each in (network, model):
        each(tokens(), attention_mask=_padded("left"))
    blocks = [module for module in model.modules() if isinstance(module, DropInBlock)]
    for block, expected in zip(blocks, network.transformer.h, strict=True):
        for norm in ("ln_1", "ln_2"):
            torch.testing.assert_close(
                getattr(block, norm).running_mean_square,
                getattr(expected, norm).running_mean_square,
            )


@pytest.mark.parametrize("source", HUGGING_FACE)
def test_gradient_checkpointing_gives_the_same_gradients(source):
    model = convert(HUGGING_FACE[source](), "SM(t)+FN+ScFuFFN", inplace=True).train()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable()
        blocks = [module for module in model.modules() if isinstance(module, DropInBlock)]
        assert all(block.gradient_checkpointing == checkpointing for block in blocks)
        copied = copy.deepcopy(model)
        copied(tokens(), labels=tokens(), use_cache=True).loss.backward()
        gradients.append([parameter.grad for parameter in copied.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("source", ["gpt2", "pythia"])
def test_it_compiles_without_a_graph_break(source):
    model = convert(SOURCES[source](), "SM(t)+FN+ScFuFFN", inplace=True)
    with torch.no_grad():
        expected = model(tokens(), use_cache=False).logits
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(tokens(), use_cache=False).logits, expected)


def test_the_entropies_have_gradients_and_copies_go_without_them():
    model = convert(nano_gpt(), "SM(t)+ScFuFFN", inplace=True)
    model(tokens())
    block = model.transformer.h[0]
    block.entropy.mean().backward()
    assert block.attn.c_attn.weight.grad.any() and block.attn.temperature.value.grad.any()
    assert copy.deepcopy(model).transformer.h[0].entropy is None


def test_the_state_dict_of_gpt2_keeps_its_names_and_layout():
    model = gpt2()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    after = convert(model, "SM(t)+LN+G", inplace=True).state_dict()
    added = {f"transformer.h.{layer}.attn.temperature.value" for layer in range(3)}
    assert set(after) == set(before) | added
    for name, value in before.items():
        assert torch.equal(after[name], value), name
    model.load_state_dict(before)  # temperatures keep their start
    assert model.transformer.h[0].attn.temperature.value.eq(1).all()


@pytest.mark.parametrize("source", ["gpt2", "pythia"])
def test_a_stock_trainer_trains_it(source, tmp_path):
    model = convert(SOURCES[source](), "SM(t)+FN+ScFuFFN", inplace=True)
    data = [{"input_ids": row, "labels": row} for row in tokens(8)]
    arguments = TrainingArguments(
        str(tmp_path), max_steps=6, learning_rate=1e-2, report_to=[], use_cpu=True,
        save_strategy="no", per_device_train_batch_size=4, logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("source", ["gpt2", "pythia"])
def test_entropies_and_the_penalty_serve_it(source):
    model = SOURCES[source]()
    network = convert(model, "SM(t)+ScFuFFN")
    convert(model, "SM(t)+ScFuFFN", inplace=True)
    found, expected = (aero.entropies(each, tokens()) for each in (model, network))
    torch.testing.assert_close(found.layers, expected.layers, rtol=1e-5, atol=1e-5)
    output = aero.with_entropy_penalty(model.train())(tokens(), labels=tokens())
    output.entropy_loss.backward()
    assert model.get_parameter(
        next(name for name, _ in model.named_parameters() if name.endswith("temperature.value"))
    ).grad.any()


def test_an_aero_network_is_changed_in_place():
    model = aero_network("SM+LN+G")
    changed = convert(model, "EReg(SM(t)+ScFuFFN)", inplace=True)
    assert changed is model and isinstance(model, AeroForCausalLM)
    assert model.config.spec.label == "EReg(SM(t)+ScFuFFN)"
    expected = convert(aero_network("SM+LN+G"), "EReg(SM(t)+ScFuFFN)")
    assert torch.equal(logits_of(model, tokens()), logits_of(expected, tokens()))
    assert model.train()(tokens(), labels=tokens()).entropy_loss is not None


def test_a_dry_run_changes_nothing_in_place():
    model = gpt2()
    before = repr(model)
    assert convert(model, "SM+ScFuFFN", inplace=True, dry_run=True).after.spec.label == "SM+ScFuFFN"
    assert repr(model) == before


@pytest.mark.parametrize("options", [{"context_length": 8}, {"tied_embeddings": False}])
def test_what_would_change_the_embeddings_is_refused_in_place(options):
    model = gpt2()
    before = repr(model)
    with pytest.raises(ValueError, match="in place the embeddings stay the model's; leave out"):
        convert(model, "SM+ScFuFFN", inplace=True, **options)
    assert repr(model) == before


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("label", [*LABELS, "SM+LR(global)_i1"])
def test_a_model_trained_in_place_becomes_an_aero_network(source, label, tmp_path):
    label = _without_penalty(label) if source.startswith("nanogpt") else label
    model = convert(SOURCES[source](), label, inplace=True)
    for parameter in model.parameters():
        with torch.no_grad():  # as a training step would
            parameter.add_(0.01 * torch.sin(torch.arange(parameter.numel())).view_as(parameter))
    network = convert(model, label)
    assert network.config.spec.label == label
    assert relative_difference(logits_of(network, tokens()), logits_of(model, tokens())) < 1e-5
    network.save_pretrained(tmp_path)
    loaded = AeroForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits_of(loaded, tokens()), logits_of(network, tokens()))


def test_strengths_of_a_model_in_place_begin_equal_in_the_aero_network():
    label, asked = "EReg(SM+LN+G)", {"entropy_strengths": "learned"}
    model = convert(gpt2(), label, inplace=True, **asked)
    network = convert(model, label)
    assert network.strength_bias.shape == (3, 3) and not network.strength_bias.any()
    assert (convert(gpt2(), label, **asked).head_strengths() == 1).all()
    assert convert(convert(gpt2(), label, inplace=True), label).strength_bias is None


@pytest.mark.parametrize(
    "make",
    [
        lambda rate: gpt2(resid_pdrop=rate),
        lambda rate: pythia(hidden_dropout=rate),
        lambda rate: _with_dropout(nano_gpt(), rate),
    ],
)
def test_residual_dropout_of_the_host_stays(make):
    model = make(0.25)
    for label in ("SM+LN+R", "SM+FN+R"):  # the second time from our own blocks
        convert(model, label, inplace=True)
        blocks = [module for module in model.modules() if isinstance(module, DropInBlock)]
        assert [block.dropout for block in blocks] == [0.25] * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda rate: gpt2(attn_pdrop=rate),
        lambda rate: pythia(attention_dropout=rate),
        lambda rate: _with_attention_dropout(nano_gpt(), rate),
    ],
)
def test_attention_dropout_of_the_host_stays_in_training(make):
    model = make(0.25)
    ids = torch.arange(8)[None]
    for label in ("SM+LN+R", "SM+FN+R"):  # the second time from our own blocks
        convert(model, label, inplace=True)
        blocks = [module for module in model.modules() if isinstance(module, DropInBlock)]
        assert [block.attn.attention_dropout for block in blocks] == [0.25] * 3
        for is_training in (False, True):
            model.train(is_training)
            for block in blocks:
                block.dropout = 0.0
            one, other = (first_of(model(ids)) for _ in range(2))
            assert torch.equal(one, other) != is_training
    new = convert(make(0.25), "SM+LN+R").train()
    assert all(block.attn.attention_dropout == 0.25 for block in new.transformer.blocks())


def first_of(output):
    return output[0] if isinstance(output, tuple) else output.logits


def _with_attention_dropout(model, rate):
    for block in model.transformer.h:
        block.attn.dropout = rate
    return model


def test_dropout_that_a_block_of_ours_has_not_is_refused():
    model = nano_gpt()
    model.transformer.h[1].mlp.hidden_dropout = torch.nn.Dropout(0.3)
    with pytest.raises(ValueError, match=r"dropout 0.3 in mlp.hidden_dropout"):
        convert(model, "SM+LN+R", inplace=True)
    model = nano_gpt()
    model.transformer.h[1].mlp.dropout.p = 0.3
    with pytest.raises(ValueError, match=r"several dropouts in a block, 0.1, 0.3"):
        convert(model, "SM+LN+R", inplace=True)


def _with_dropout(model, rate):
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = rate
    return model


@pytest.mark.parametrize("source", SOURCES)
def test_a_model_is_converted_in_place_in_several_steps(source):
    model = convert(SOURCES[source](), "SM+FN+ScFFN", inplace=True)
    convert(model, "SM(t)+FN+ScFuFFN_i1", inplace=True)
    expected = convert(convert(SOURCES[source](), "SM+FN+ScFFN"), "SM(t)+FN+ScFuFFN_i1")
    assert relative_difference(logits_of(model, tokens()), logits_of(expected, tokens())) < 1e-5


def test_additive_masks_are_refused_with_what_to_do():
    model = convert(gpt2(), "SM+ScFuFFN", inplace=True)
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match=r"boolean .*set_attn_implementation\('aero'\)"):
        model(tokens())


def test_a_model_with_additive_masks_is_given_boolean_ones():
    model = gpt2()
    network = convert(model, "SM+ScFuFFN")
    model.set_attn_implementation("eager")
    convert(model, "SM+ScFuFFN", inplace=True)
    mask = _padded("right")
    with torch.no_grad():
        actual, expected = (each(tokens(), attention_mask=mask).logits for each in (model, network))
    torch.testing.assert_close(actual[mask.bool()], expected[mask.bool()])


def test_the_vocabulary_of_a_model_in_place_can_grow():
    model = convert(gpt2(), "SM+ScFuFFN", inplace=True)
    model.resize_token_embeddings(VOCABULARY + 3)
    assert logits_of(model, tokens()).shape[-1] == VOCABULARY + 3
    assert convert(model, "SM+ScFuFFN").config.spec.vocab_size == VOCABULARY + 3
