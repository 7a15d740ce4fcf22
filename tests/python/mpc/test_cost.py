"""Costs as values: equal where their counts are, added count by count, rebuilt from their words."""

from __future__ import annotations

import ast
import copy
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.python.refusals import assert_refused

import aero
from aero import mpc
from aero.mpc.cost import Cost

ONE = {
    "client_bytes": 1.5,
    "server_bytes": 2.25,
    "rounds": 3,
    "elementwise_ciphertexts": 0.75,
    "ct_pt_products": 5,
    "plaintext_encodings": 6,
    "automorphisms": 7,
    "ots": 8,
    "helper_bytes": 0.5,
    "dealer_bytes": 9.5,
}


def test_every_count_is_an_attribute_an_entry_and_a_keyword() -> None:
    cost = Cost(**ONE)
    assert cost.to_dict() == {"comm_bytes": 4.25, **ONE}
    assert list(cost.to_dict()) == ["comm_bytes", *ONE]
    for name, count in ONE.items():
        assert getattr(cost, name) == count
        assert type(getattr(cost, name)) is type(count)
        assert Cost(**{name: count}) != Cost()
        assert type(cost.to_dict()[name]) is type(count)


def test_a_cost_says_itself_and_survives_pickling() -> None:
    cost = Cost(**ONE)
    assert eval(repr(cost)) == cost == pickle.loads(pickle.dumps(cost))


def test_costs_add_count_by_count() -> None:
    twice = Cost(**ONE) + Cost(**ONE)
    assert twice == Cost(**{name: 2 * count for name, count in ONE.items()})
    assert hash(twice) == hash(Cost(**ONE) + Cost(**ONE)) != hash(Cost(**ONE))


@pytest.mark.parametrize("name", ONE)
def test_costs_that_differ_in_one_count_differ(name: str) -> None:
    assert Cost(**{**ONE, name: ONE[name] + 1}) != Cost(**ONE)


def test_counts_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Cost(**ONE).rounds = 4


@pytest.mark.parametrize(
    ("counts", "named", "error"),
    [
        ({"rounds": 1, "flights": 2}, ("keywords", "'client_bytes'", "flights"), TypeError),
        ({"rounds": 1.5}, ("rounds", "a whole number", "got 1.5"), ValueError),
        ({"rounds": math.inf}, ("rounds", "a whole number", "got inf"), ValueError),
        ({"rounds": math.nan}, ("rounds", "a whole number", "got nan"), ValueError),
    ],
)
def test_counts_that_there_are_not_are_refused(
    counts: dict[str, Any], named: tuple[str, ...], error: type[Exception]
) -> None:
    assert_refused(lambda: Cost(**counts), "Cost", *named, error=error)


def test_the_types_of_the_module_list_the_counts() -> None:
    stub = ast.parse((Path(aero.__file__).parent / "_core.pyi").read_text())
    classes = {one.name: one for one in stub.body if isinstance(one, ast.ClassDef)}
    properties = {
        one.name: ast.unparse(one.returns)
        for one in classes["Cost"].body
        if isinstance(one, ast.FunctionDef) and one.decorator_list and one.returns
    }
    assert properties == {"comm_bytes": "float"} | {
        name: type(count).__name__ for name, count in ONE.items()
    }


def test_every_count_says_what_it_counts() -> None:
    for name in ONE:
        assert len(vars(Cost)[name].__doc__.split()) > 1


def test_an_operation_says_who_it_is() -> None:
    operation = mpc.simulate("SM+ScFuFFN").operations[1]
    assert repr(operation) == f"<Operation {operation.name}: {operation.shape}>"
    assert operation == mpc.simulate("SM+ScFuFFN").operations[1] != mpc.simulate("SM").operations[2]


def test_reports_latencies_and_schedules_can_be_copied() -> None:
    latency = mpc.simulate("SM+LN+G").latency("wan-100mbps")
    for held in (latency, latency.schedule()):
        assert copy.deepcopy(held) == held
    assert latency.operation_times[1] != latency.operation_times[2]
    one, two = latency.schedule().segments[:2]
    assert one != two == copy.copy(two)
    report = mpc.simulate("SM+LN+G", stack="openbumblebee")
    copied = copy.deepcopy(report)
    assert copied == report
    assert {one.evaluator for one in copied.operations} == {"both", "server"}
