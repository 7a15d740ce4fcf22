"""The test whether bytes tell prompts apart finds a shift, and nothing where there is none."""

from __future__ import annotations

import numpy as np
from measure_traffic import LEVEL, found_shift, p_value, traffic_table

PROMPTS = np.array(["one", "other", "third"] * 15)


def test_a_shift_of_one_prompt_in_one_column_is_found_and_noise_is_not() -> None:
    generator = np.random.default_rng(7)
    sizes = generator.normal(1e6, 100, (45, 3)).round()
    assert p_value(sizes, PROMPTS, orders=500) > LEVEL
    shift = found_shift(sizes, PROMPTS)
    assert 64 <= shift <= 512  # a normal deviation's share that 15 runs show
    sizes[PROMPTS == "other", 2] += shift
    assert p_value(sizes, PROMPTS, orders=500) < LEVEL


def test_false_alarms_are_as_rare_as_the_level_says() -> None:
    generator = np.random.default_rng(3)
    alarms = [
        p_value(generator.normal(size=(45, 4)), PROMPTS, orders=99) <= 0.1 for _ in range(100)
    ]
    assert 2 <= sum(alarms) <= 21  # binomial of 100 and 0.1: outside once in a thousand


def test_the_table_tells_different_messages_and_different_bytes() -> None:
    generator = np.random.default_rng(1)

    def runs(more_bytes: int = 0, more_messages: int = 0) -> list[dict[str, object]]:
        return [
            {
                "label": label,
                "prompt": prompt,
                "stages": [
                    {
                        "stage": "layer 0",
                        "messages": [3, 4 + more_messages * (prompt == "other token")],
                        "bytes": [
                            1_000_000
                            + int(generator.integers(100))
                            + more_bytes * (prompt == "mixed"),
                            77,
                        ],
                    }
                ],
            }
            for label in ("SM+ScFuFFN", "SM+LN+G")
            for prompt in ["one token", "other token", "mixed"] * 5
        ]

    def cells(table: str) -> list[str]:
        return [cell.strip() for cell in table.splitlines()[2].split("|")[1:-1]]

    said = cells(traffic_table(runs()))
    assert said[:4] == ["SM+ScFuFFN", "15", "equal", "1 of 2"] and said[-1] == "no"
    assert cells(traffic_table(runs(more_messages=1)))[2] == "different"
    assert cells(traffic_table(runs(more_bytes=500)))[-1] == "yes"
