"""`aero.with_entropy_penalty` under `torchrun`: two processes make the steps of one."""

import runpy
import subprocess
import sys

from safetensors.torch import load_file

PROGRAM = """
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
import aero

processes = int(sys.argv[1])
config = GPT2Config(
    vocab_size=16, n_embd=32, n_layer=2, n_head=4, n_positions=32, initializer_range=0.3,
    attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0,
)
rows = torch.randint(1, 16, (8, 10), generator=torch.Generator().manual_seed(5))
for reduction in ("position_sum", "query_mean"):
    set_seed(0)
    model = GPT2LMHeadModel(config)
    arguments = TrainingArguments(
        output_dir=f"{processes}/{reduction}", max_steps=2, optim="sgd", learning_rate=0.01,
        per_device_train_batch_size=4 // processes, gradient_accumulation_steps=2, seed=0,
        lr_scheduler_type="constant", max_grad_norm=0.0, report_to=[], save_strategy="no",
        use_cpu=True, disable_tqdm=True,
    )
    settings = {"threshold": 0.1, "margin": 0.01, "reduction": reduction}
    model = aero.with_entropy_penalty(model, weight=1.0, **settings)
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()
    trainer.save_model(arguments.output_dir)
"""


def test_two_processes_train_as_one(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(script), "2"],
        capture_output=True, text=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), "1"])
    runpy.run_path(str(script))
    for reduction in ("position_sum", "query_mean"):
        one, two = (
            load_file(tmp_path / processes / reduction / "model.safetensors")
            for processes in ("1", "2")
        )
        assert (one["entropy_penalty.threshold_bias"] - 0.1).abs().max() > 1e-4
        for name, value in one.items():
            # Float32 sums of the same rows in another order, twice.
            allowed = 1e-4 * value.abs().max()
            assert (two[name] - value).abs().max() <= allowed, (reduction, name)
