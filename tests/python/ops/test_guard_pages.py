"""The installed kernels read and write nothing beside the tensors they are given.

Inputs lie directly before or after a page that may not be touched. The C++ tests do the same to
outputs and scratch memory, with kernels that are compiled for the sanitizers; these are optimised.
A stray access ends the process, so the calls are made in one of their own.
"""

from __future__ import annotations

import signal
import subprocess
import sys

CHILD = """
import ctypes, itertools, mmap, os, sys
import torch

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

def guarded(x, at_end):
    # A copy of x in pages of its own, with forbidden ones before and after.
    data = x.contiguous()
    count = data.numel() * data.element_size()
    inside = (count + PAGE - 1) // PAGE * PAGE
    base = libc.mmap(None, inside + 2 * PAGE, 3, 0x22, -1, 0)  # private, anonymous
    assert libc.mprotect(base, PAGE, 0) == libc.mprotect(base + PAGE + inside, PAGE, 0) == 0
    start = base + PAGE + (inside - count if at_end else 0)
    buffer = (ctypes.c_char * count).from_address(start)
    copy = torch.frombuffer(buffer, dtype=data.dtype).view(data.shape).copy_(data)
    return copy.requires_grad_(x.is_floating_point())

if sys.argv[1] != "operators":
    x = guarded(torch.zeros(8), sys.argv[1] == "after")
    ctypes.c_float.from_address(x.data_ptr() + (32 if sys.argv[1] == "after" else -4)).value
    sys.exit("a forbidden page was read")

from aero._library import cpu_isa
from aero.ops import (
    attention_entropy, entropy_regularization, scaled_ffn, temperature_softmax,
)

for isa, at_end, dtype in itertools.product(
    ("scalar", "avx2", "avx512", "avx512bf16", "amx"), (True, False),
    (torch.float32, torch.bfloat16, torch.float16, torch.float64),
):
    os.environ["AERO_CPU_ISA"] = isa
    if cpu_isa() != isa:
        continue
    put = lambda *shape: guarded(torch.randn(shape).to(dtype), at_end)
    rows = lambda x: guarded(x.double() if dtype == torch.float64 else x, at_end)
    for t, s, d in ((1, 67, 64), (2, 33, 37), (37, 37, 16), (65, 67, 80), (16, 130, 1)):
        q, k, v = put(2, 4, t, d), put(2, 2, s, d), put(2, 2, s, d)
        temperature = rows(0.5 + torch.rand(4, t))
        mask = guarded(torch.rand(2, 1, t, s) < 0.8, at_end)
        dentropy = rows(torch.randn(2, 4, t)).detach()
        for options in ({"is_causal": True}, {"mask": mask}):
            out, entropy, _ = attention_entropy(q, k, v, temperature=temperature, **options)
            torch.autograd.grad(
                [out, entropy], [q, k, v, temperature], [put(2, 4, t, d).detach(), dentropy]
            )
        scores = put(2, 4, t, s)
        p, entropy, _ = temperature_softmax(scores, temperature=temperature, mask=mask)
        torch.autograd.grad(
            [p, entropy], [scores, temperature], [put(2, 4, t, s).detach(), dentropy]
        )
        x, weight, bias = put(t, s), put(s, s), put(s)
        scales = {name: rows(torch.rand(1) + 0.5) for name in ("alpha", "beta")}
        y = scaled_ffn(x, weight, bias, **scales)
        torch.autograd.grad(y, [x, weight, bias, *scales.values()], put(t, s).detach())
        entropies, thresholds = rows(3 * torch.rand(3, 2, 4, t)), rows(torch.rand(3, 4))
        for options in ({}, {"row_mask": guarded(torch.rand(2, t) < 0.8, at_end)}):
            loss = entropy_regularization(entropies, thresholds, context_length=9, **options)
            torch.autograd.grad(loss, [entropies, thresholds])
print("untouched")
"""


def run_child(what: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", CHILD, what], capture_output=True, text=True)


def test_operators_touch_nothing_beside_their_inputs() -> None:
    run = run_child("operators")
    assert run.returncode == 0 and run.stdout == "untouched\n", run.stderr


def test_the_pages_beside_a_guarded_tensor_are_forbidden() -> None:
    for side in ("before", "after"):
        assert run_child(side).returncode == -signal.SIGSEGV, side
