"""Places of NaN in words, and processes that agree on one thing."""

import json
import math

import pytest
import torch
from torch import nn

from aero.internals.records import record_bytes
from aero.models import AeroConfig, AeroForCausalLM
from aero.train import run_callback
from aero.train.divergence import NonFinite, _described, _first_gradient
from aero.train.progress import StopRequest
from aero.train.run_callback import _due, _first_of_all_processes


def spoiled(*shape, at):
    tensor = torch.zeros(shape)
    for place in at:
        tensor[place] = math.inf
    return tensor


@pytest.mark.parametrize(
    ("name", "side", "tensor", "expected"),
    [
        # Two heads of three channels: q, k and v are six each.
        ("h.12.attn.c_attn", "output", spoiled(1, 2, 18, at=[(0, 1, 10), (0, 0, 3)]), (12, 1)),
        ("transformer.h.0.attn.q_attn", "output", spoiled(1, 2, 6, at=[(0, 1, 2)]), (0, 0)),
        ("h.1.attn.c_attn", "output", spoiled(1, 2, 18, at=[(0, 1, 5), (0, 1, 12)]), (1, 0)),
        ("transformer.h.3.attn.c_proj", "input", spoiled(1, 2, 6, at=[(0, 1, 5)]), (3, 1)),
        ("transformer.h.3.attn.c_proj", "output", spoiled(1, 2, 6, at=[(0, 1, 5)]), (3, None)),
        ("transformer.h.3.attn.c_attn", "input", spoiled(1, 2, 6, at=[(0, 1, 5)]), (3, None)),
        ("transformer.h.3.attn", "output", spoiled(1, 2, 6, at=[(0, 1, 5)]), (3, 1)),
        ("transformer.h.3.attn", "output", spoiled(1, 2, 7, at=[(0, 1, 5)]), (3, None)),
        ("transformer.h.3.mlp.c_proj", "input", spoiled(1, 2, 6, at=[(0, 1, 5)]), (3, None)),
        ("lm_head", "output", spoiled(1, 2, 6, at=[(0, 1, 5)]), (None, None)),
        ("transformer.hh.3.x", "output", spoiled(1, at=[0]), (None, None)),
        ("", "output", spoiled(1, at=[0]), (None, None)),
    ],
)  # fmt: skip
def test_a_place_in_the_forward_pass_is_told_in_words(name, side, tensor, expected):
    assert _described(name, side, tensor, 2, 3) == NonFinite(
        *expected, f"{side} of {name or 'model'}"
    )


def test_a_place_among_gradients_is_the_one_nearest_the_loss():
    names = ("h.0.entropy_threshold", "h.1.temperature", "h.1.mlp", "temperature_of_all", "frozen")
    shapes = ((2,), (2, 3), (2,), (1,), (1,))
    model = nn.Module()
    for name, shape in zip(names, shapes, strict=True):
        place = model
        for part in name.split(".")[:-1]:
            place.add_module(part, getattr(place, part, nn.Module()))
            place = getattr(place, part)
        place.register_parameter(name.split(".")[-1], nn.Parameter(torch.zeros(shape)))
    parameters = dict(model.named_parameters())
    assert _first_gradient(model, 2) is None
    for name, at, expected in (
        ("h.0.entropy_threshold", [1], (0, 1)),
        ("h.1.temperature", [(1, 2), (0, 1)], (1, 0)),
        ("h.1.mlp", [1], (1, None)),
        ("temperature_of_all", [0], (None, None)),
    ):
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        parameters["frozen"].grad = None
        parameters[name].grad = spoiled(*parameters[name].shape, at=at)
        assert _first_gradient(model, 2) == NonFinite(*expected, f"gradient of {name}")
    later = list(parameters)[-2:]
    for name in later:
        parameters[name].grad = torch.full_like(parameters[name], math.nan)
    assert _first_gradient(model, 2).what == f"gradient of {later[-1]}"


def test_the_finding_of_all_processes_names_a_place_if_any_does(monkeypatch):
    loss, place = NonFinite(None, None, "loss"), NonFinite(1, 0, "output of h.1")
    assert _first_of_all_processes(loss) is loss
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)

    for others in ([loss, place], [place, loss]):

        def gather(gathered, mine, others=others):
            assert len(gathered) == 2
            gathered[:] = others

        monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
        assert _first_of_all_processes(loss) == place


def test_buffers_of_all_processes_are_those_of_the_first(monkeypatch):
    sent = []
    norm = nn.BatchNorm1d(2)
    run_callback._share_buffers(norm)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "broadcast", lambda x, src: sent.append((x, src)))
    run_callback._share_buffers(norm)
    assert [src for _, src in sent] == [0, 0, 0]
    assert all(x is buffer for (x, _), buffer in zip(sent, norm.buffers(), strict=True))


def test_all_processes_stop_where_one_was_asked(monkeypatch):
    stop = StopRequest()
    assert stop.agreed(torch.device("cpu")) is False
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for others in (0.0, 1.0):
        monkeypatch.setattr(torch.distributed, "all_reduce", lambda flag, n=others: flag.add_(n))
        assert stop.agreed(torch.device("cpu")) is stop.requested is bool(others)


@pytest.mark.parametrize(
    ("step", "every", "due"),
    [(0, 5, True), (4, 5, False), (5, 5, True), (5, 0, False), (3, 1, True)],
)
def test_every_so_many_steps_something_is_due(step, every, due):
    assert _due(step, every) is due


def test_what_is_not_finite_is_null_however_deep_it_stands():
    value = {"a": (1.0, math.nan), "b": [{"c": -math.inf}], "d": "nan", "e": 2, "f": True}
    assert json.loads(record_bytes(value)) == {
        "a": [1.0, None],
        "b": [{"c": None}],
        "d": "nan",
        "e": 2,
        "f": True,
    }


def test_measurements_keep_no_cache(monkeypatch):
    """Of keys and values: it costs memory, and nothing reads it."""
    from aero.train.distillation import Distillation
    from aero.train.runs.perplexity import _token_losses
    from aero.train.starting import score_deviations

    model, asked = AeroForCausalLM(AeroConfig.from_label("SM", model="tiny")).eval(), []
    forward = type(model.transformer).forward

    def seen(self, *given, **options):
        asked.append(options["use_cache"])
        return forward(self, *given, **options)

    monkeypatch.setattr(type(model.transformer), "forward", seen)
    ids = torch.zeros(1, 4, dtype=torch.int64)
    outputs = model(ids, labels=ids, use_cache=False)
    _token_losses(model, ids)
    score_deviations(model, ids)
    run_callback.head_entropies(model, ids)
    Distillation(model, temperature=1.0, weight=0.5).loss(
        outputs, {"input_ids": ids, "labels": ids}, None
    )
    assert asked == [False] * 5
