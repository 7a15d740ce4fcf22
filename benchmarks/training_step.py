"""A training step of EReg(SM(t)+ScFuFFN) against Hugging Face's GPT-2 of the same size.

python benchmarks/training_step.py [--quick] [--output results/NAME.md]
"""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from attention_report import hardware, ratio_text
from step_shares import KINDS, PROFILED_STEPS, shares
from timer import (
    KEEP_FREED_MEMORY,
    Quartiles,
    Timing,
    in_child,
    interleaved,
    parser,
    publish,
)
from torch import Tensor, nn
from transformers import AttentionInterface, GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

from aero.models import AeroConfig, AeroForCausalLM
from aero.models.initialization import decay_parameter_names
from aero.nn.linear import product
from aero.ops import attention_entropy
from aero.tables import markdown_table

LABEL = "EReg(SM(t)+ScFuFFN)"
WEIGHT, MARGIN, TEMPERATURE = 1e-5, 0.1, 1e-2


@dataclass(frozen=True)
class Case:
    """Sizes and precision of one comparison."""

    preset: str
    batch: int
    length: int
    precision: str
    rounds: int

    @property
    def name(self) -> str:
        return f"{self.preset} B{self.batch} T{self.length} {self.precision}"

    @property
    def config(self) -> AeroConfig:
        vocabulary = {"vocab_size": 1024} if self.preset == "mini" else {}
        return AeroConfig.from_label(
            LABEL,
            model=self.preset,
            context_length=self.length,
            entropy_weight=WEIGHT,
            entropy_tokens=self.batch * (self.length - 1),
            tolerance_margin=MARGIN,
            temperature_init=TEMPERATURE,
            **vocabulary,
        )


CASES = {
    case.name: case
    for case in (
        Case("mini", 16, 128, "float32", 9),
        Case("mini", 16, 128, "bfloat16 autocast", 9),
        Case("gpt2", 4, 128, "float32", 3),
        Case("gpt2", 4, 128, "bfloat16 autocast", 3),
        Case("gpt2", 2, 512, "float32", 2),
        Case("gpt2", 2, 512, "bfloat16 autocast", 2),
    )
}
#: Of memory alone: there the logits are much of the step.
LARGEST = Case("gpt2", 4, 512, "bfloat16 autocast", 2)
CONTENDERS = ("ours", "with logits", "sdpa", "listing")
QUICK = tuple(name for name, case in CASES.items() if case.preset == "mini")
LONGEST = tuple(name for name, case in CASES.items() if case.length == 512)
PROFILED = ("gpt2 B4 T128 float32", "gpt2 B4 T128 bfloat16 autocast")


class Listing(nn.Module):
    """Attention with temperature, entropy and thresholds as in the paper's PyTorch listing."""

    def __init__(self, heads: int, length: int) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.full((heads, length, 1), TEMPERATURE))
        self.threshold = nn.Parameter(torch.full((heads,), 0.5))
        self.entropy: Tensor | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) / (query.shape[-1] ** 0.5 * self.temperature)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        self.entropy = -torch.sum(weights * torch.log(weights + 1e-9), dim=-1)
        return weights.to(value.dtype) @ value

    def penalty(self) -> Tensor:
        entropy, self.entropy = self.entropy, None
        assert entropy is not None
        largest = torch.log(torch.tensor(float(entropy.shape[-1])))
        total = torch.zeros(())
        for head, threshold in enumerate(self.threshold):
            deviation = entropy[:, head] - threshold * largest
            outside = deviation.abs() > MARGIN * largest
            total = total + torch.where(outside, deviation**2, 0).sum()
        return total / len(self.threshold)


def listing_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: Any, **_: Any
) -> tuple[Tensor, None]:
    """`Listing` in the place of Hugging Face's attention functions."""
    return module.listing.attend(query, key, value).transpose(1, 2).contiguous(), None


AttentionInterface.register("listing", listing_attention)


def model_of(case: Case, name: str) -> nn.Module:
    """Our network, or Hugging Face's SM+LN+G with torch's attention or the listing."""
    torch.manual_seed(0)
    spec = case.config.spec
    if name in ("ours", "with logits"):
        return AeroForCausalLM(case.config)
    logging.set_verbosity_error()
    config = GPT2Config(
        vocab_size=spec.vocab_size,
        n_positions=spec.context_length,
        n_embd=spec.width,
        n_layer=spec.num_layers,
        n_head=spec.num_heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=name,
    )
    model = GPT2LMHeadModel(config)
    if name == "listing":
        for block in model.transformer.h:
            block.attn.listing = Listing(spec.num_heads, spec.context_length)
    return model


def step_of(case: Case, name: str) -> Callable[[], None]:
    """One optimizer step: forward, backward, clip, AdamW, zero_grad."""
    model = model_of(case, name).train()
    decayed = set(decay_parameter_names(model))
    groups = [
        {"params": [p for n, p in model.named_parameters() if n in decayed], "weight_decay": 0.1},
        {
            "params": [p for n, p in model.named_parameters() if n not in decayed],
            "weight_decay": 0.0,
        },
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
    tokens = torch.randint(case.config.spec.vocab_size, (case.batch, case.length))
    listings = [module for module in model.modules() if isinstance(module, Listing)]
    kept = {"logits_to_keep": None} if name == "ours" else {}

    def step() -> None:
        is_bfloat16 = case.precision.startswith("bfloat16")
        with torch.autocast("cpu", torch.bfloat16) if is_bfloat16 else nullcontext():
            loss = model(tokens, labels=tokens, **kept).loss
        for listing in listings:
            loss = loss + WEIGHT * listing.penalty() / len(listings)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def products_of(case: Case) -> Callable[[], None]:
    """The matrix products of a step of ours alone: output, and both gradients, of each layer."""
    spec = case.config.spec
    width, rows = spec.width, case.batch * case.length
    widths = [3 * width, width, width] * spec.num_layers + [spec.vocab_size]
    dtype = torch.bfloat16 if case.precision.startswith("bfloat16") else torch.float32
    operands = [
        tuple(torch.randn(size).to(dtype) for size in ((rows, width), (out, width), (rows, out)))
        for out in widths
    ]

    def multiply() -> None:
        for inputs, weight, gradient in operands:
            product(inputs, weight)
            product(gradient, weight.t())
            product(gradient.t(), inputs.t())

    return multiply


def parameter_bytes(case: Case) -> int:
    """The bytes that a step of ours must move for each parameter, whatever it computes.

    AdamW reads parameter, gradient and two moments and writes all but the gradient; clipping reads
    the gradient twice and writes it once; autocast reads each weight and writes it in bfloat16, and
    its gradient the other way round.
    """
    optimizer, clipping, casts = 7 * 4, 3 * 4, 2 * (4 + 2)
    return optimizer + clipping + (casts if case.precision.startswith("bfloat16") else 0)


def parameters_copied(case: Case) -> Callable[[], None]:
    """Copies as many float32 numbers as the network has parameters: 8 bytes each."""
    count = sum(parameter.numel() for parameter in AeroForCausalLM(case.config).parameters())
    source, target = torch.ones(count), torch.ones(count)

    def copy() -> None:
        target.copy_(source)

    return copy


def peak_bytes() -> int:
    """The largest resident size of this process so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def attention_bytes(case: Case, name: str) -> int:
    """The bytes that the attention of all layers keeps between forward and backward.

    Counted by `saved_tensors_hooks` over one forward of attention alone at this size: tensors that
    autograd saves, each storage once, without q, k, v and the parameters, which every form keeps.
    """
    spec = case.config.spec
    shape = (case.batch, spec.num_heads, case.length, spec.head_dim)
    dtype = torch.bfloat16 if case.precision.startswith("bfloat16") else torch.float32
    q, k, v = (torch.randn(shape).to(dtype).requires_grad_() for _ in range(3))
    listing = Listing(spec.num_heads, case.length)
    given = {x.untyped_storage().data_ptr() for x in (q, k, v, *listing.parameters())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in given:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        if name == "listing":
            output: Any = (listing.attend(q, k, v), listing.penalty())
        else:
            temperature = listing.temperature.squeeze(-1)
            output = attention_entropy(q, k, v, temperature=temperature, is_causal=True)
    del output
    return spec.num_layers * sum(kept.values())


def measure(section: str, rounds: int) -> dict[str, Any]:
    """Runs in a child: times of all contenders in turn, or the memory or the shares of one."""
    kind, _, rest = section.partition("/")
    torch.set_num_threads(2)
    if kind == "time":
        case = CASES[rest]
        steps = {name: step_of(case, name) for name in CONTENDERS}
        steps["products"] = products_of(case)
        steps["copies"] = parameters_copied(case)
        timings = interleaved(steps, rounds, sample_seconds=0.2)
        return {name: list(timing.samples_ms) for name, timing in timings.items()}
    name, _, rest = rest.partition("/")
    case = LARGEST if rest == LARGEST.name else CASES[rest]
    if kind == "shares":
        return shares(step_of(case, name))
    attention = attention_bytes(case, name) if name in ("ours", "listing") else 0
    step = step_of(case, name)
    before = peak_bytes()
    for _ in range(2):
        step()
    return {"step": peak_bytes(), "before": before, "attention": attention}


def time_table(names: tuple[str, ...], quick: bool) -> str:
    rows = []
    for name in names:
        rounds = max(2, CASES[name].rounds // (3 if quick else 1))
        measured = in_child(
            ["--section", f"time/{name}", "--rounds", str(rounds)], KEEP_FREED_MEMORY
        )
        times = {key: Timing(tuple(ms)) for key, ms in measured.items()}
        row = [name, str(times["ours"])]
        for opponent in CONTENDERS[1:]:
            ratio: Quartiles = times[opponent].ratio_to(times["ours"])
            row += [str(times[opponent]), ratio_text(ratio)]
        over_products = times["ours"].ratio_to(times["products"])
        rest = times["ours"].median_ms - times["products"].median_ms
        moved = times["copies"].median_ms * parameter_bytes(CASES[name]) / 8
        row += [str(times["products"]), ratio_text(over_products)]
        rows.append([*row, f"{rest:.0f}", f"{moved:.0f}"])
    header = ["", "ours, ms", "with logits, ms", "ratio", "SDPA, ms", "ratio"]
    header += ["listing, ms", "ratio", "products alone, ms", "ours over products"]
    header += ["ours without products, ms", "of it memory of parameters, ms"]
    return markdown_table(header, rows)


def memory_table(names: tuple[str, ...]) -> str:
    rows = []
    for name in names:
        used = {
            key: in_child(["--section", f"memory/{key}/{name}", "--rounds", "2"], {})
            for key in CONTENDERS
        }
        attention = used["listing"]["attention"] / used["ours"]["attention"]
        rows.append(
            [
                name,
                *(f"{used[key]['step'] / 1e6:.0f}" for key in CONTENDERS),
                *(f"{used[key]['attention'] / 1e6:.1f}" for key in ("ours", "listing")),
                f"{attention:.1f}",
            ]
        )
    header = ["", "ours, peak MB", "with logits, peak MB", "SDPA, peak MB", "listing, peak MB"]
    header += ["ours, attention MB", "listing, attention MB", "ratio"]
    return markdown_table(header, rows)


def shares_table(names: tuple[str, ...]) -> str:
    rows = []
    for case in names:
        for name in CONTENDERS:
            measured = in_child(
                ["--section", f"shares/{name}/{case}", "--rounds", "2"], KEEP_FREED_MEMORY
            )
            rows.append([case, name, *(f"{100 * share:.0f} %" for share in measured.values())])
    return markdown_table(["", "", *KINDS, "everything else"], rows)


TITLE = "# A training step against Hugging Face's GPT-2"
METHOD = f"""\
One step is forward, backward, gradient clipping, fused AdamW and zero_grad, without dropout, on the
same random tokens. "ours" is {LABEL} (`AeroForCausalLM`) with `logits_to_keep=None`,
as `aero train` and `AeroTrainer` call it; "with logits" is the same network that also returns its
logits. "SDPA" is GPT2LMHeadModel (SM+LN+G) of the same layers, heads, width and vocabulary, with
scaled_dot_product_attention. "listing" is that model with the paper's listing as attention: it
forms the scores, has a temperature, keeps the entropy and has a penalty per head. Contenders take
turns in one process with two threads. A time is the median with quartiles, and a ratio is the
median of the rounds' own ratios (above 1: ours is faster). `MALLOC_TRIM_THRESHOLD_` and
`MALLOC_MMAP_THRESHOLD_` are 1e9 for all while timing. mini is the demo recipe's network; gpt2 has
12 layers of width 768 and GPT-2's vocabulary.

"products alone" are the matrix products of a step of ours, three for each layer and the head, on
operands that lie ready in the step's dtype, by the same functions of torch. "memory of parameters"
is what bounds most of the rest: the bytes that AdamW, clipping and autocast move for each
parameter, 40 in float32 and 52 under autocast, at the rate of a copy of as many parameters. Each
step pays them once, so larger batches share them out. Attention, cross entropy, sums over rows and
copies of activations remain."""
SHARES = f"""\
Time of {PROFILED_STEPS} steps in operators by torch's profiler, one thread, each operator without
those it calls, once the memory of the process grows no more. `scaled_ffn` is shown with its
products, which are most of it: the operator library calls oneDNN where the profiler does not see
it. Pages up to November 2026 counted its forward pass as everything else, and the growth of memory
as casts and copies."""
MEMORY = """\
"peak" is the largest resident size of a process of its own that does two steps with the default
allocator: libraries, parameters, optimizer state, activations and logits together. "attention"
counts the tensors that the attention of all layers saves for the backward pass, without q, k, v and
parameters (`torch.autograd.graph.saved_tensors_hooks`). The ratio compares these, because the rest
of a step is the same with either attention."""


def main() -> None:
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--section", help="time/CASE, or memory or shares/CONTENDER/CASE")
    chosen = arguments.parse_args()
    if chosen.section:
        print(json.dumps(measure(chosen.section, chosen.rounds)))
        return
    names = QUICK if chosen.quick else tuple(CASES)
    command = "python benchmarks/training_step.py"
    command += f" --output {chosen.output}" if chosen.output else ""
    parts = [TITLE, f"`{command}`", hardware(), METHOD, "## Time", time_table(names, chosen.quick)]
    parts += [
        "## Where the time goes",
        SHARES,
        shares_table(QUICK[:1] if chosen.quick else PROFILED),
    ]
    parts += ["## Memory", MEMORY]
    parts.append(memory_table(QUICK[:1] if chosen.quick else (*LONGEST, LARGEST.name)))
    publish("\n\n".join(parts), chosen.output)


if __name__ == "__main__":
    main()
