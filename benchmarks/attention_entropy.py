"""attention_entropy against torch's scaled_dot_product_attention, which returns no entropy.

    python benchmarks/attention_entropy.py --threads 2 --rounds 21 [--cpu-time] [--output FILE]

Causal, D = 64, a temperature per head and position, gradients of output and entropy. Ratios above 1
mean that attention_entropy is faster.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from timer import interleaved, machine, markdown_table, parser, publish
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from aero.ops import attention_entropy

SIZES = [(8, 12, 128), (4, 12, 512), (2, 12, 1024)]  # B, H, T: the same 12288 queries
HEAD_DIM = 64


def contenders(
    shape: tuple[int, int, int], dtype: torch.dtype, backward: bool
) -> dict[str, Callable[[], object]]:
    """The two calls to time on the same inputs."""
    batch, heads, length = shape
    generator = torch.Generator().manual_seed(0)
    q, k, v, dout = (
        torch.randn(batch, heads, length, HEAD_DIM, generator=generator).to(dtype) for _ in range(4)
    )
    temperature = 0.5 + torch.rand(heads, length, generator=generator)
    dentropy = torch.randn(batch, heads, length, generator=generator)
    leaves = (q, k, v, temperature)
    for leaf in leaves:
        leaf.requires_grad_(backward)

    def ours() -> tuple[Tensor, Tensor]:
        out, entropy, _ = attention_entropy(q, k, v, temperature=temperature, is_causal=True)
        return out, entropy

    def ours_with_backward() -> object:
        return torch.autograd.grad(ours(), leaves, (dout, dentropy))

    def sdpa() -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    def sdpa_with_backward() -> object:
        return torch.autograd.grad(sdpa(), leaves[:3], dout)

    if backward:
        return {"ours": ours_with_backward, "sdpa": sdpa_with_backward}
    return {"ours": ours, "sdpa": sdpa}


def measure(rounds: int, cpu_time: bool) -> str:
    """The table over dtypes, sizes and directions."""
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for backward in (False, True):
            for batch, heads, length in SIZES:
                calls = contenders((batch, heads, length), dtype, backward)
                times = interleaved(calls, rounds, cpu_time=cpu_time)
                ratio = times["sdpa"].median_ms / times["ours"].median_ms
                rows.append(
                    [
                        str(dtype).removeprefix("torch."),
                        f"B{batch} H{heads} T{length}",
                        "forward + backward" if backward else "forward",
                        str(times["sdpa"]),
                        str(times["ours"]),
                        f"{ratio:.2f}",
                    ]
                )
    header = ["dtype", "size", "direction", "SDPA, ms", "attention_entropy, ms", "ratio"]
    return markdown_table(header, rows)


def main() -> None:
    arguments = parser(__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(arguments.threads)
    clock = "CPU time" if arguments.cpu_time else "wall clock"
    table = measure(arguments.rounds, arguments.cpu_time)
    publish(f"{machine()}, {clock}, medians (quartiles)\n\n{table}", arguments.output)


if __name__ == "__main__":
    main()
