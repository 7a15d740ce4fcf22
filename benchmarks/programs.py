"""Training steps of other people's programs on a CPU, as they are and on this library's kernels.

python benchmarks/programs.py [--nanogpt FOLDER] [--nanochat FOLDER] [--only WORD]
    [--output results/NAME.md]

A program is a function that builds a model from a seed and returns one step of its training, which
returns the loss. Its lines are its own: the folders hold the repositories of nanoGPT and nanochat,
which are fetched for it and not kept here.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from attention_report import hardware, ratio_text
from timer import KEEP_FREED_MEMORY, Timing, in_child, parser, publish
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import aero
from aero import flash_attn
from aero.tables import markdown_table

METHOD = """\
Training steps of programs as their authors wrote them, float32 with AdamW, taken in turn by two
equal models in one process of one thread, whose CPU time counts: one model as it is ("torch"), the
other inside `with aero.accelerate():` ("ours"), or, for nanochat, with `nanochat.gpt.flash_attn =
aero.flash_attn` in place of its own fallback to torch. nanoGPT has the sizes of its
train_shakespeare_char.py (batches of 4), nanochat 64 channels for each layer of its depth, heads of
128 on one head of keys, its windows and its optimizer's place taken by AdamW, with projections that
do not start at zero, so that attention is in its losses; rows of bfloat16 are in its own way of
computing in that. "Attention alone" is forward and backward of the call in one such layer, of a
window of a quarter of T or of all tokens. The models of transformers have two layers; the
vocabulary is 1,000. A time is the median in
milliseconds, with its quartiles; a ratio is the median of the steps' own ratios (above 1: ours is
faster). "Losses" is the largest difference of the losses of a step, as a part of the loss; where
attention weights are dropped, the two draw other numbers, and the mean losses stand there."""

Step = Callable[[], float]
_VOCABULARY = 1000


def _batches(batch: int, length: int) -> Callable[[], torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return lambda: torch.randint(_VOCABULARY, (batch, length + 1), generator=generator)


def _step(model: Any, loss_of: Callable[[torch.Tensor], torch.Tensor], batches: Any) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> float:
        torch.manual_seed(0)  # of the dropout
        loss = loss_of(batches())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def _shifted(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def _loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def nanogpt(folder: Path, dropout: float) -> Step:
    """A model of nanoGPT's model.py, at the sizes of its config/train_shakespeare_char.py."""
    theirs = _loaded("nanogpt_model", folder / "model.py")
    torch.manual_seed(0)
    config = theirs.GPTConfig(
        block_size=256, vocab_size=_VOCABULARY, n_layer=6, n_head=6, n_embd=384, dropout=dropout,
        bias=False,
    )  # fmt: skip
    model = theirs.GPT(config).train()
    return _step(model, lambda ids: model(*_shifted(ids))[1], _batches(4, 256))


def _nanochat(folder: Path) -> tuple[ModuleType, Any]:
    sys.path.insert(0, str(folder))
    own = importlib.import_module("nanochat.flash_attention").flash_attn
    return importlib.import_module("nanochat.gpt"), own


def nanochat(folder: Path, depth: int, length: int, flash_attention: ModuleType | None) -> Step:
    """A model of nanochat's gpt.py, with windows and grouped heads."""
    gpt, own = _nanochat(folder)
    torch.manual_seed(0)
    config = gpt.GPTConfig(
        sequence_len=length, vocab_size=_VOCABULARY, n_layer=depth, n_head=depth // 2, n_kv_head=1,
        n_embd=64 * depth,
    )  # fmt: skip
    model = gpt.GPT(config)
    model.init_weights()
    for name, weight in model.named_parameters():
        if name.endswith("c_proj.weight") or name == "lm_head.weight":
            torch.nn.init.normal_(weight, std=0.03)

    def loss_of(ids: torch.Tensor) -> torch.Tensor:
        gpt.flash_attn = own if flash_attention is None else flash_attention
        loss: torch.Tensor = model(*_shifted(ids))
        return loss

    return _step(model.train(), loss_of, _batches(1, length))


def nanochat_attention(
    folder: Path, length: int, window: int, flash_attention: ModuleType | None
) -> Step:
    """Forward and backward of the call that nanochat's layers make, two heads on one of keys."""
    gpt, own = _nanochat(folder)
    attention = own if flash_attention is None else flash_attention
    generator = torch.Generator().manual_seed(0)
    q, k, v, dout = (
        torch.randn(1, length, heads, 128, generator=generator).to(gpt.COMPUTE_DTYPE)
        for heads in (2, 1, 1, 2)
    )
    operands = [x.requires_grad_() for x in (q, k, v)]

    def step() -> float:
        out = attention.flash_attn_func(*operands, causal=True, window_size=(window, 0))
        found = torch.autograd.grad(out, operands, dout)
        return float(sum(x.detach().double().abs().mean() for x in (out, *found)))

    return step


def gpt2(attention_dropout: float) -> Step:
    """A GPT-2 of transformers; by default it drops 0.1 of the attention weights."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=_VOCABULARY, n_positions=512, n_layer=2, bos_token_id=0, eos_token_id=0,
        attn_pdrop=attention_dropout,
    )  # fmt: skip
    model = GPT2LMHeadModel._from_config(config, attn_implementation="sdpa").train()
    return _step(model, lambda ids: model(ids, labels=ids).loss, _batches(2, 511))


def llama() -> Step:
    """A Llama of transformers with grouped heads."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCABULARY, hidden_size=768, intermediate_size=2048, num_hidden_layers=2,
        num_attention_heads=12, num_key_value_heads=4,
    )  # fmt: skip
    model = LlamaForCausalLM._from_config(config, attn_implementation="sdpa").train()
    return _step(model, lambda ids: model(ids, labels=ids).loss, _batches(2, 511))


def lightning() -> Step:
    """Steps that Lightning's Trainer takes with a GPT-2 in a LightningModule, two at a time."""
    import lightning as L

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")

    class Language(L.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            config = GPT2Config(
                vocab_size=_VOCABULARY, n_positions=512, n_layer=2, n_embd=384, n_head=6,
                bos_token_id=0, eos_token_id=0, attn_pdrop=0.0,
            )  # fmt: skip
            self.model = GPT2LMHeadModel._from_config(config, attn_implementation="sdpa")
            self.last = 0.0

        def training_step(self, ids: torch.Tensor, index: int) -> torch.Tensor:
            loss = self.model(ids, labels=ids).loss
            self.last = float(loss.detach())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    torch.manual_seed(0)
    module, batches = Language(), _batches(2, 511)

    def step() -> float:
        torch.manual_seed(0)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = L.Trainer(max_steps=2, accelerator="cpu", enable_model_summary=False, **quiet)
        tokens = torch.cat([batches(), batches()])
        trainer.fit(module, torch.utils.data.DataLoader(tokens, batch_size=len(tokens) // 2))
        return module.last

    return step


def programs(folders: dict[str, Path]) -> dict[str, tuple[Callable[[bool], Step], bool]]:
    """Name -> how to build it for us or for torch, and whether the two lose the same."""
    found: dict[str, tuple[Callable[[bool], Step], bool]] = {
        "transformers' GPT-2, no attention dropout": (lambda _: gpt2(0.0), True),
        "transformers' GPT-2, as it comes": (lambda _: gpt2(0.1), False),
        "transformers' Llama, grouped heads": (lambda _: llama(), True),
    }
    if "nanogpt" in folders:
        found["nanoGPT"] = (lambda _: nanogpt(folders["nanogpt"], 0.0), True)
        found["nanoGPT, dropout 0.2"] = (lambda _: nanogpt(folders["nanogpt"], 0.2), False)
    if "nanochat" in folders:
        folder, number = folders["nanochat"], os.environ.get("NANOCHAT_DTYPE", "float32")
        for depth, length in ((4, 1024), (4, 2048), (6, 2048)):
            found[f"nanochat d{depth}, {number}, T = {length:,}"] = (
                lambda ours, d=depth, n=length: nanochat(
                    folder, d, n, flash_attn if ours else None
                ),
                True,
            )
        for window in (512, 2048):
            found[f"nanochat, {number}, T = 2,048, attention alone, window {window:,}"] = (
                lambda ours, w=window: nanochat_attention(
                    folder, 2048, w, flash_attn if ours else None
                ),
                True,
            )
    if importlib.util.find_spec("lightning") is not None:
        found["Lightning's Trainer"] = (lambda _: lightning(), True)
    return found


def measure(
    folders: dict[str, Path], rounds: int, only: str
) -> list[tuple[str, str, dict[str, list[float]]]]:
    """Runs in a child: the program, how far apart the losses are, and its milliseconds."""
    torch.set_num_threads(1)
    found = []
    for name, (build, is_equal) in programs(folders).items():
        if only not in name:
            continue
        contenders = {"torch": build(False), "ours": build(True)}
        samples: dict[str, list[float]] = {key: [] for key in contenders}
        losses: dict[str, list[float]] = {key: [] for key in contenders}
        for _ in range(rounds + 1):
            for key, step in contenders.items():
                with aero.accelerate() if key == "ours" else nullcontext():
                    start = time.process_time()
                    losses[key].append(step())
                    samples[key].append(1e3 * (time.process_time() - start))
        pairs = zip(losses["ours"], losses["torch"], strict=True)
        means = [f"{sum(values) / len(values):.3f}" for values in losses.values()]
        said = f"{max(abs(a - b) / b for a, b in pairs):.0e}" if is_equal else " and ".join(means)
        found.append((name, said, {key: ms[1:] for key, ms in samples.items()}))
    return found


def main() -> None:
    """Measures in a child and publishes a report."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--section", choices=["all"], help="the measurements, as JSON")
    for name in ("nanogpt", "nanochat"):
        arguments.add_argument(f"--{name}", type=Path, help="a folder with its repository")
    arguments.add_argument("--only", default="", help="a word of the programs to measure")
    arguments.set_defaults(rounds=5)
    chosen = arguments.parse_args()
    given = {name: getattr(chosen, name) for name in ("nanogpt", "nanochat")}
    folders = {name: folder for name, folder in given.items() if folder is not None}
    if chosen.section:
        print(json.dumps(measure(folders, chosen.rounds, chosen.only)))
        return
    child = ["--section", "all", "--rounds", str(3 if chosen.quick else chosen.rounds)]
    for name, folder in folders.items():
        child += [f"--{name}", str(folder)]
    found = in_child([*child, "--only", chosen.only], KEEP_FREED_MEMORY)
    if "nanochat" in folders and "nanochat".startswith(chosen.only):
        own_numbers = {**KEEP_FREED_MEMORY, "NANOCHAT_DTYPE": "bfloat16"}
        found += in_child([*child, "--only", "nanochat"], own_numbers)
    rows = []
    for name, said, samples in found:
        timings = {key: Timing(tuple(ms)) for key, ms in samples.items()}
        ratio = ratio_text(timings["torch"].ratio_to(timings["ours"]))
        rows.append([name, said, str(timings["torch"]), str(timings["ours"]), ratio])
    command = "python benchmarks/programs.py" + "".join(f" --{name} {name}" for name in folders)
    command += f" --only {chosen.only}" if chosen.only else ""
    command += f" --output {chosen.output}" if chosen.output else ""
    table = markdown_table(["program", "losses", "torch, ms", "ours, ms", "ratio"], rows)
    parts = ["# Other people's programs on these kernels", f"`{command}`", hardware(), METHOD]
    publish("\n\n".join([*parts, table]), chosen.output)


if __name__ == "__main__":
    main()
