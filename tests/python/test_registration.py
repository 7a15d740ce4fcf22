"""`import aero` is enough for `transformers`, in either order, and costs nothing alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

ORDERS = {
    "transformers first": "import transformers; import aero",
    # Looking for a package does not import it.
    "aero first": (
        "import aero, importlib.util; importlib.util.find_spec('transformers'); import transformers"
    ),
}


def output(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("order", ORDERS)
def test_names_are_known_once_both_are_imported(order: str) -> None:
    check = (
        "; print(transformers.AttentionInterface().valid_keys()[-2:], transformers.__spec__.name)"
    )
    check += "; print('aero' in transformers.CONFIG_MAPPING)"
    assert output(ORDERS[order] + check).splitlines() == [
        "['aero', 'aero_entropy'] transformers",
        "True",
    ]


def test_aero_alone_imports_neither_torch_nor_transformers() -> None:
    program = "import aero, sys; print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    assert output(program) == "set()"


def test_a_missing_transformers_is_missing_as_before() -> None:
    program = (
        "import sys, aero\n"
        "sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
        "try:\n    import transformers\nexcept ModuleNotFoundError as error:\n    print(error)"
    )
    assert output(program) == "No module named 'transformers'"


def test_without_torch_both_can_be_imported_and_a_warning_says_what_is_missing() -> None:
    program = (
        "import sys, warnings; sys.modules['torch'] = None\n"
        "import aero\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    import transformers\n"
        "print(said[-1].message, aero.mpc.simulate('SM', model='tiny').comm_bytes > 0)"
    )
    said = output(program)
    assert said.startswith("aero is not known to transformers: ") and said.endswith("True")
