"""Command lines that nobody would type, from the commands' own tables of options.

Every command and option of `aero` is reached, new ones too: the tree of commands is walked, and
values are drawn by the name of what takes them. A wrong line ends in one line of error.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Iterator
from typing import Any

from commands import COMMAND, LABEL, SCRATCH, SETTINGS, end_of, prepare
from drawing import Draw

prepare()
RUN = SCRATCH / "runs" / "ereg-sm-t-scfuffn-seed0"


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The commands that do something, with their words."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


COMMANDS = list(leaves(COMMAND))
LABELS = ("SM+LN+G", "SM+ScFuFFN", LABEL, "SM+R", "SM+FN+R", "EReg(SM(t)+ScFuFFN_i6)", "SM")
# By the name of an option or of an argument: what is right somewhere.
FITTING: dict[str, tuple[object, ...]] = {
    "label": LABELS, "first": LABELS, "second": LABELS,
    "recipe": ("demo", "codeparrot", "languini"), "data": (SCRATCH / "corpus", "stdlib"),
    "stack": ("spu-2024", "spu-0.9.5", "openbumblebee", "aero-optimized", "sigma", "blb"),
    "fixed_point": ("spu-2024", "sigma"),
    "model": ("gpt2", "mini", "tiny", "pythia-70m"), "network": ("lan-1gbps", "wan-400mbps"),
    "compute": ("none", "spu-epyc", "paper-testbed,threads=8"), "link": ("memory", "tcp",
    "lan-1gbps"),
    "set_": (*SETTINGS, "mul_share=true", "num_layers=2", "exp_squarings=5", "threads=2"),
    "also_set": ("exp_squarings=5", "one_bit_product_error=true"),
    "source": (RUN, RUN / "model", SCRATCH / "export"), "runs": (RUN, SCRATCH / "runs"),
    "run": (RUN,),
    "sources": (RUN, SCRATCH / "export"), "network_folder": (SCRATCH / "export",),
    "start_from": (RUN, RUN / "checkpoints" / "step-6"), "distill_from": (RUN,),
    "resume": ("auto", "never"), "tokenizer": (RUN / "model",), "output": ("out", "out/deeper"),
    "cache_dir": (SCRATCH / "cache",), "config": (RUN / "config.yaml",), "target": ("table2",
    "list", "front"),
    "scale": ("mini", "small", "paper"), "pareto": ("comm_gb", "rounds", "perplexity"),
    "listen": ("127.0.0.1:0",), "connect": ("127.0.0.1:1",), "prompt": ("def f(",),
    "prompt_tokens": ("1,2,3",), "size": ("128", "64:1000"), "results": ("stem",),
    "html": ("page.html",),
    "operations": ("relu", "softmax"), "csv": (), "log": ("log.txt",),
}  # fmt: skip
FITTING_NUMBERS = ("1", "2", "3", "8", "32", "0.5", "100")
BAD_NUMBERS = ("-1", "0", "nan", "inf", "-inf", "1e30", "1e999", "9" * 400, "0x10", "1_000", "٣",
               "-0", "2**3",
               "18446744073709551616", "-9223372036854775809", "1e-300", "")  # fmt: skip
HOSTILE = (
    # Not the root of all files: some commands look for runs in everything below.
    "", " ", "-", "--", ".", "..", "/proc/self", "/dev/null", "/dev/full",
    "/proc/self/mem", "missing/x", "%s%n", "\x1b[31mred",
    "two\nlines", "tab\there", "💥", "\u202etxt.exe", "a" * 5000, "(" * 300, "SM+" * 200, "=",
    "x=", "=x", "a=b=c",
    "null", "[1, 2", "{a: *b}", "!!python/object:os.system x", "..\\..", "~", "*", "EReg(SM(t)",
    "SM+LN+G\x00",
    "SM_i99", "SM+ScFuFFN_i-1", "training.tokens=1e30", "training.tokens=-1",
    "optimizer.learning_rate=.inf",
    "optimizer.beta1=1.0", "model.context_length=0", "model.context_length=99999999999",
    "data.vocabulary=0",
    "training.threads=-1", "seed=1", "model={}", "model=[]", "training.tokens=" + "9" * 400,
    "model.preset=\x1b[2J",
    "num_layers=0", "num_layers=1e9", "num_layers=-3", "num_layers=nan", "mul_share=maybe",
    "exp_squarings=-1",
    "exp_squarings=99", "wan-100mbps,uplink_mbps=0", "wan-100mbps,uplink_mbps=nan",
    "wan-100mbps,uplink_mbps=-1",
    "paper-testbed,threads=0", "lan-1gbps,", ",", "1,,2", "1:2:3", "0:0", "host:", ":80",
    "host:99999", "1,-2", "1,x",
)  # fmt: skip


def value_for(draw: Draw, parameter: Any) -> str:
    is_number = parameter.type.name.startswith(("integer", "float"))
    if draw.chance(0.6):
        fitting = FITTING_NUMBERS if is_number else FITTING.get(parameter.name, ())
        if fitting:
            return str(draw.choice(fitting))
    if is_number and draw.chance(0.8):
        return draw.choice(BAD_NUMBERS)
    return draw.choice((*HOSTILE, *BAD_NUMBERS))


def line(draw: Draw) -> list[str]:
    """A command with its required arguments, mostly, and some others."""
    path, command = draw.choice(COMMANDS)
    words = []
    for parameter in command.params:
        if not draw.chance(0.96 if parameter.required else 0.25):
            continue
        is_option, often = parameter.opts[0].startswith("-"), draw.choice((1, 1, 1, 2))
        if getattr(parameter, "is_flag", False):
            words.append([draw.choice([*parameter.opts, *parameter.secondary_opts])])
            continue
        for _ in range(often if is_option else draw.choice((1, 2)) if parameter.nargs < 0 else 1):
            value = value_for(draw, parameter)
            words.append([parameter.opts[0], value] if is_option else [value])
    draw.shuffle(words)
    if draw.chance(0.03):
        words.insert(0, [draw.choice(("--nonsense", "--help", "-x", "--", draw.choice(HOSTILE)))])
    whole = [*path, *(word for group in words for word in group)]
    if draw.chance(0.01):
        whole = [draw.choice((*HOSTILE, "trian", "cost", "private"))]
    return whole


def attack(seed: int) -> int:
    draw = Draw(seed)
    arguments, folder = line(draw), SCRATCH / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        status, output = end_of(arguments, folder)
        if status == 0 and not output.startswith("began") and "--help" not in arguments:
            _refuse_nonsense(arguments)
    except Exception as error:
        raise AssertionError(f"aero {' '.join(map(repr, arguments))}: {error}") from error
    return 1


# What these say is true of any number: a bound that is never or always reached.
ANY_NUMBER = (
    "--max-load",
    "--max-loss-increase",
    "--max-collapsed-heads",
    "--wait",
    "--silence",
    "--stage",
)


def _refuse_nonsense(arguments: list[str]) -> None:
    """No command says nothing to a number that has no meaning."""
    # Of an option that is given twice the last value counts.
    for option, value in dict(itertools.pairwise(arguments)).items():
        number = value if option.startswith("--") else "0"
        try:
            fits = math.isfinite(float(number)) and float(number) >= 0
        except ValueError:
            fits = True
        texts = ("--title", "--prompt", "--output", "--html", "--results", "--cache-dir", "--log")
        assert fits or option in (*ANY_NUMBER, *texts), f"{option} {value} was accepted"
