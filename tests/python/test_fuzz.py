"""The long attack itself: that it watches its processes, goes on, and notices errors."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aero import ops

FUZZ = Path(__file__).parents[1] / "fuzz"

ATTACK = """
import os, time
def attack(seed):
    if seed == 3:
        raise ValueError("three is wrong")
    if seed == 5:
        os.abort()
    if seed == 7:
        time.sleep(3600)
    return 2
"""


def test_crashes_and_hangs_are_failures_with_their_seed_and_a_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "numbers_attack.py").write_text(ATTACK)

    def run(*arguments: str) -> str:
        command = [sys.executable, str(FUZZ / "run.py"), "--state", str(tmp_path), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={
            "PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"})  # fmt: skip
        assert done.returncode == (0 if "11" in arguments else 1), done.stderr
        return done.stdout

    attack = ("--attack", "numbers_attack", "--limit", "3")
    first = run(*attack, "--cases", "9")
    assert [line.split(": ")[1] for line in first.splitlines() if line.startswith("failed")] == [
        "numbers_attack:3", "numbers_attack:5", "numbers_attack:7",
    ]  # fmt: skip
    assert "three is wrong" in first and "status -6" in first and "no end after 3 s" in first
    assert "seeds 9 to 19, 22 cases tried, 0 failed" in run(*attack, "--cases", "11")
    lines = [json.loads(x) for x in (tmp_path / "numbers_attack.jsonl").read_text().splitlines()]
    assert sum(line.get("cases", 0) for line in lines) == 20


@pytest.fixture
def operator_calls(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FUZZ)
    monkeypatch.setenv("AERO_CPU_ISA", "scalar")
    import operator_calls  # type: ignore[import-not-found]
    import transformed_calls  # type: ignore[import-not-found]  # noqa: F401  # before paths change
    import variant_calls  # type: ignore[import-not-found]  # noqa: F401

    threads = torch.get_num_threads()
    yield operator_calls
    torch.set_num_threads(threads)


def test_a_few_hundred_operator_calls_pass(operator_calls: Any) -> None:
    assert sum(operator_calls.attack(seed) for seed in range(60)) > 300


@pytest.fixture
def variant_calls(operator_calls: Any) -> Any:
    return sys.modules["variant_calls"]


def test_a_few_hundred_calls_of_attentions_variants_pass(variant_calls: Any) -> None:
    assert sum(variant_calls.attack(seed) for seed in range(40)) > 300


@pytest.mark.parametrize(
    "left_out",
    ["window", "softcap", "bias", "alibi_slopes", "sinks", "dropout_p", "cu_seqlens", "scale",
     "mask", "temperature", "is_causal"],
)  # fmt: skip
def test_a_variant_that_is_left_out_is_found(
    variant_calls: Any, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    whole = ops.attention_entropy

    def without(*, backend: str, **arguments: Any) -> Any:
        return whole(**{n: x for n, x in arguments.items() if n != left_out}, backend=backend)

    given = variant_calls.factor_of
    monkeypatch.setattr(ops, "attention_entropy", without)

    def factor_of(*of: Any) -> Any:
        with monkeypatch.context() as context:
            context.setattr(ops, "attention_entropy", whole)
            return given(*of)

    monkeypatch.setattr(variant_calls, "factor_of", factor_of)
    with pytest.raises(AssertionError):
        for seed in range(40):
            variant_calls.attack(seed)


def test_variants_are_drawn_with_every_kind_of_argument(variant_calls: Any) -> None:
    calls = [variant_calls.draw_variants(variant_calls.Draw(seed)) for seed in range(600)]
    tensors, options = [call.tensors for call in calls], [call.options for call in calls]
    masks = [x["mask"] for x in options if x.get("mask") is not None]
    numbers = [m for m in masks if m.is_floating_point()]
    finite = [m for m in numbers if bool(m.isfinite().all()) and bool((m > -1e4).all())]
    shares = {
        "values of another width": sum(x["q"].shape[-1] != x["v"].shape[-1] for x in tensors),
        "wide": sum(max(x["q"].shape[-1], x["v"].shape[-1]) > 70 for x in tensors),
        "no batch": sum(x["q"].dim() == 3 for x in tensors),
        "max_logits": sum(x["return_max_logits"] for x in options),
        "masks of numbers": len(numbers),
        "... as a bias": sum(bool(m.any()) for m in finite),
        "... of the least number": sum(
            bool((m < -6e4).any() & m.isfinite().all()) for m in numbers
        ),
        "packed": sum("cu_seqlens" in x for x in options),
        "dropout": sum("dropout_p" in x for x in options),
    }
    least = dict.fromkeys(shares, 20) | {"max_logits": 150, "values of another width": 120}
    least |= {"wide": 10, "... of the least number": 5}
    assert {name: n for name, n in shares.items() if n < least[name]} == {}


@pytest.mark.parametrize(
    "damage",
    [
        lambda m, key: (m + 1e-2 * m.abs().clamp(min=1e-2), key),
        lambda m, key: (m.detach() + 1.05 * (m - m.detach()), key),
        lambda m, key: (m, torch.where(key > 0, key - 1, key)),
    ],
    ids=["value", "gradient", "key"],
)
def test_a_largest_logit_that_is_wrong_is_found(
    variant_calls: Any, monkeypatch: pytest.MonkeyPatch, damage: Any
) -> None:
    whole = ops.attention_entropy

    def wrong(*arguments: Any, **options: Any) -> Any:
        out, entropy, logsumexp, *largest = whole(*arguments, **options)
        return out, entropy, logsumexp, *(damage(*largest) if largest else ())

    monkeypatch.setattr(ops, "attention_entropy", wrong)
    with pytest.raises(AssertionError, match=r"max_logits|largest_key|gradient of"):
        for seed in range(40):
            variant_calls.attack(seed)


@pytest.fixture
def transformed_calls(operator_calls: Any) -> Any:
    return sys.modules["transformed_calls"]


def test_a_few_transformed_calls_pass(transformed_calls: Any) -> None:
    assert sum(transformed_calls.attack(seed) for seed in range(8)) == 24


def damaged(operator: str, damage: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """The operator with its first result wrong by a little."""
    good = getattr(ops, operator)

    def bad(*arguments: Any, **options: Any) -> Any:
        results = good(*arguments, **options)
        if not isinstance(results, tuple):
            return damage(results)
        return damage(results[0]), *results[1:]

    return bad


@pytest.mark.parametrize(
    "operator", ["attention_entropy", "temperature_softmax", "scaled_ffn", "entropy_regularization"]
)
@pytest.mark.parametrize(
    "damage",
    [lambda x: x * 1.05, lambda x: x.detach() + 0.05 * (x - x.detach()), lambda x: x + 1e-3],
    ids=["result", "gradient", "offset"],
)
def test_a_wrong_operator_is_noticed(
    operator: str, damage: Any, operator_calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, operator, damaged(operator, damage))
    with pytest.raises(AssertionError, match=operator):
        for seed in range(60):
            operator_calls.attack(seed)


def test_a_variant_without_a_derivative_is_noticed_under_transforms(
    transformed_calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ops.attention_entropy

    def without(*arguments: Any, sinks: Any = None, **options: Any) -> Any:
        given = None if sinks is None else sinks.detach()
        return whole(*arguments, sinks=given, **options)

    monkeypatch.setattr(ops, "attention_entropy", without)
    with pytest.raises(AssertionError, match="sinks="):
        for seed in range(60):
            transformed_calls.attack(seed)


@pytest.mark.parametrize(
    "operator", ["attention_entropy", "temperature_softmax", "scaled_ffn", "entropy_regularization"]
)
def test_a_derivative_that_is_lost_is_noticed(
    operator: str, transformed_calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, operator, damaged(operator, torch.Tensor.detach))
    with pytest.raises(AssertionError, match=operator):
        for seed in range(40):
            transformed_calls.attack(seed)


ATTACKS = runpy.run_path(str(FUZZ / "run.py"))["ATTACKS"].values()


def test_the_attacks_share_all_of_the_time() -> None:
    assert sum(attack.share for attack in ATTACKS) == 1


@pytest.mark.parametrize(
    "module",
    # The tests above try many cases of these three.
    sorted({attack.module for attack in ATTACKS}
           - {"operator_calls", "variant_calls", "transformed_calls"}),
)  # fmt: skip
def test_every_attack_begins(module: str, tmp_path: Path) -> None:
    command = [sys.executable, str(FUZZ / "run.py"), "--state", str(tmp_path)]
    one_case = ("--attack", module, "--cases", "1")
    done = subprocess.run([*command, *one_case], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{module}: seeds 0 to 0, " in done.stdout
