"""What users get wrong is refused in one line, before anything is computed or changed by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.python.refusals import assert_refused
from torch import Tensor

import aero
from aero import AeroConfig, AeroForCausalLM, mpc, ops
from aero.analysis import summarize_entropies
from aero.conversion import begin_annealing
from aero.models import EntropyPenalty, FixedPointForCausalLM
from aero.mpc import NetworkProfile
from aero.mpc.profiles import link_words
from aero.nn import Block, CausalSelfAttention, FeedForward, FoldableNorm, Temperature
from aero.report import write_report
from aero.train import Distillation, load_recipe

Q = torch.zeros(1, 2, 4, 8)
ENTROPIES = torch.ones(2, 1, 2, 4)
THRESHOLDS = torch.full((2, 2), 0.5)
LEARNED = torch.tensor(0.25, requires_grad=True)


def network(label: str = "SM+ScFuFFN", **settings: Any) -> AeroForCausalLM:
    return AeroForCausalLM(AeroConfig.from_label(label, model="tiny", **settings)).eval()


def attend(**changed: Any) -> Any:
    return ops.attention_entropy(Q, Q, Q, **changed)


def penalize(**changed: Any) -> Any:
    return ops.entropy_regularization(ENTROPIES, THRESHOLDS, **changed)


def penalty(thresholds: Any = THRESHOLDS, **settings: Any) -> EntropyPenalty:
    return EntropyPenalty(thresholds, **settings)


def layers(count: int) -> tuple[Tensor, ...]:
    return (ENTROPIES[0],) * count


def keys(count: int) -> tuple[Tensor, ...]:
    return (torch.arange(1, 5)[None],) * count


def distil(**settings: Any) -> Distillation:
    return Distillation(torch.nn.Linear(1, 1), **{"temperature": 2.0, "weight": 0.5, **settings})


def temperature(**settings: Any) -> Temperature:
    return Temperature("head", num_heads=2, context_length=4, **settings)


def generate(**settings: Any) -> Any:
    return mpc.simulate_generation("SM", model="tiny", **{"new_tokens": 2, **settings})


def summarized(temperatures: Any) -> Any:
    return summarize_entropies(ENTROPIES, temperatures=temperatures)


def attention() -> CausalSelfAttention:
    return CausalSelfAttention(8, 2)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: attend(bias=torch.ones(4, 4).bool()), ("bias", "floats", "bool; a mask goes to")),
        (lambda: attend(bias=torch.ones(4, 4).long()), ("bias", "floats", "got torch.int64")),
        (lambda: attend(temperature=torch.ones(2).bool()), ("temperature", "floats")),
        (lambda: attend(sinks=torch.ones(2).int()), ("sinks", "floats")),
        (lambda: attend(scale=LEARNED), ("scale must be a number", "with a gradient")),
        (lambda: attend(softcap=LEARNED), ("softcap must be a number", "with a gradient")),
        (lambda: attend(scale="1"), ("scale must be a number", "got '1'")),
        (lambda: attend(window=3), ("window must be (left, right)", "got 3")),
        (lambda: attend(window=(1.5, 0)), ("window must be (left, right)", "got (1.5, 0)")),
        (lambda: attend(window=(-1, 0)), ("window must be (left, right)", "got (-1, 0)")),
        (lambda: penalize(margin=LEARNED), ("margin must be a number", "with a gradient")),
        (lambda: penalize(margin=None), ("margin must be a number", "got None")),
        (lambda: penalize(context_length=float("nan")), ("context_length", "at least 1")),
        (lambda: Block(attention(), None, residual="paralell"), ("residual", "parallel", "got 'p")),
        (lambda: FeedForward(8, 32, gelu_approximation="erf"), ("'tanh' or 'none'", "got 'erf'")),
        (lambda: CausalSelfAttention(8, 0), ("sizes must be from 1", "got (8, 0, None)")),
        (lambda: CausalSelfAttention(8, 2, head_dim=0), ("sizes must be from 1", "(8, 2, 0)")),
        (lambda: FoldableNorm(8)(torch.ones(2, 5, 1)), ("C = 8", "got [2, 5, 1]")),
        (lambda: FoldableNorm(8, eps=-5), ("eps must be a number from 0", "got -5")),
        (lambda: FixedPointForCausalLM(torch.nn.Linear(1, 1)), ("AeroForCausalLM", "got Linear")),
        (lambda: penalty().term(layers(2), -4), ("predicted must be from 0", "got -4")),
        (lambda: mpc.operation_cost("relu", True), ("sizes of relu", "integers", "got True")),
        (lambda: mpc.operation_cost("relu", 5.0), ("sizes of relu", "integers", "got 5.0")),
        (lambda: generate(new_tokens=2.0), ("new_tokens must be an integer", "got 2.0")),
        (lambda: generate(batch=True), ("batch must be an integer", "got True")),
        (lambda: summarized([np.ones((3, 4))] * 2), ("[H, T], [H] or [1]", "got [3, 4]")),
        (lambda: summarized([np.ones((2, 3))] * 2), ("[H, T], [H] or [1]", "got [2, 3]")),
        (lambda: temperature(init=float("nan")), ("init", "got nan")),
        (lambda: AeroConfig(embedding_dropout=1.0), ("embedding_dropout", "below 1", "got 1.0")),
        (lambda: distil(temperature=0), ("temperature", "above 0", "got 0")),
        (lambda: distil(temperature="2"), ("temperature", "above 0", "got '2'")),
        (lambda: distil(weight=2), ("weight", "from 0 to 1", "got 2")),
        (lambda: penalty([[0.5]]), ("thresholds", "[L, H]", "got list")),
        (lambda: penalty(torch.ones(2)), ("thresholds", "[L, H]", "got [2]")),
        (lambda: penalty(THRESHOLDS / 0 * 0), ("thresholds", "finite")),
        (lambda: penalty(weight=True), ("weight must be a number from 0", "got True")),
        (lambda: penalty(context_length=0), ("context_length", "from 1", "got 0")),
        (lambda: penalty()(layers(1)), ("entropies", "2 layers", "got 1")),
        (
            lambda: penalty(max_entropy="log_visible")(layers(2), keys(1)),
            ("visible_keys", "2 layers", "got 1"),
        ),
        (
            lambda: begin_annealing(network("SM+LN+G"), "SM+LN+R", entropy_wieght=1.0),
            ("no option 'entropy_wieght'", "entropy_weight"),
        ),
        (
            lambda: begin_annealing(network("SM+LN+G"), "SM+LN+R", entropy_weight=-3.0),
            ("entropy_weight", "from 0", "-3.0"),
        ),
        (
            lambda: aero.convert(network("SM(t)+LN+G"), "SM(t)+LN+R", temperature_init=0.5),
            ("temperature_init must be left out", "got 0.5"),
        ),
        (
            lambda: aero.convert(network("EReg(SM+LN+G)"), "EReg(SM+LN+R)", threshold_init=0.9),
            ("threshold_init must be left out", "got 0.9"),
        ),
        (lambda: aero.prune_ffn(network(), layers=[True]), ("layers must be of integers", "True")),
        (lambda: aero.prune_ffn(network(), layers=[0.0]), ("layers must be of integers", "0.0")),
        (lambda: aero.prune_ffn(network(), deepest=1.0), ("deepest must be of integers", "1.0")),
        (lambda: summarize_entropies(ENTROPIES + 1j), ("row_entropies must be real",)),
        (
            lambda: summarize_entropies(ENTROPIES, context_length=float("nan")),
            ("context_length", "an integer >= 1", "got nan"),
        ),
        (lambda: write_report([], Path("nowhere")), ("report", "at least one", "got none")),
        (lambda: aero.mpc.simulate("SM").to_dict(compute="nope"), ("compute", "network", "nope")),
        (lambda: aero.mpc.simulate("SM").compare(None), ("expected a CostReport", "got NoneType")),
        (lambda: aero.mpc.simulate("SM", stack=None), ("stack", "a name or a file", "NoneType")),
        (lambda: aero.mpc.simulate({"operations": []}), ("simulate", "label", "got none")),
    ],
)  # fmt: skip
def test_a_misused_argument_is_named(call: Callable[[], Any], named: tuple[str, ...]) -> None:
    assert_refused(call, *named)


def test_whole_numbers_and_tensors_of_other_kinds_are_taken(tmp_path: Path) -> None:
    pruned = aero.prune_ffn(network(), layers=np.array([0]))
    pruned.save_pretrained(tmp_path)
    assert AeroForCausalLM.from_pretrained(tmp_path).config.pruned_ffn_layers == [0]
    whole = summarize_entropies(ENTROPIES, context_length=4).to_dict()
    learned = ENTROPIES.bfloat16().requires_grad_()
    assert summarize_entropies(learned, context_length=np.int64(4)).to_dict() == whole
    assert summarize_entropies(tuple(learned), context_length=4).to_dict() == whole
    assert penalty(weight=np.float32(0.5)).weight == 0.5
    assert torch.equal(attend(window=(np.int64(1), 0))[0], attend(window=(1, 0))[0])


def test_a_configuration_of_another_form_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    call = lambda: AeroForCausalLM.from_pretrained(tmp_path)  # noqa: E731
    assert_refused(call, "config.json", "a mapping", "got list")


def test_a_name_alone_is_one_stack_and_one_network() -> None:
    (setting,) = ["optimizer.learning_rate=2e-3"]
    assert load_recipe("demo", settings=setting) == load_recipe("demo", settings=[setting])
    link = {"uplink_mbps": 50.0, "downlink_mbps": 50.0, "round_trip_seconds": 0.5}
    for kind in (np.float32, np.float64):
        others = NetworkProfile(**{name: kind(value) for name, value in link.items()})
        assert link_words(others) == link_words(NetworkProfile(**link))
    alone = aero.mpc.sweep(["SM"], stacks="spu-2024", networks="wan-100mbps")
    assert alone.rows == aero.mpc.sweep(["SM"], stacks=["spu-2024"], networks=["wan-100mbps"]).rows


def test_an_annealing_of_a_network_with_temperatures_keeps_what_its_configuration_says() -> None:
    trained = network("SM(t)+LN+G", temperature_init=0.5)
    assert begin_annealing(trained, "SM(t)+LN+R").config.temperature_init == 0.5
