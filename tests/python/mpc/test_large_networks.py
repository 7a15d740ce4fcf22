"""Networks of a hundred thousand operations: their prices take time in proportion."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

# Its config.json, as far as it decides a price.
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "intermediate_size": 18432, "max_position_embeddings": 163840, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8,
    "topk_group": 4, "first_k_dense_replace": 3, "norm_topk_prob": True, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
}  # fmt: skip
# Five to ten times what the commands take, and less than ways back from every summand took: of the
# processor, so that no neighbour on the machine decides.
CPU_SECONDS = 20


@pytest.mark.parametrize("command", ["show", "where"])
def test_256_experts_a_layer_are_priced_in_seconds(command: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    done = subprocess.run(
        [sys.executable, "-m", "aero.cli", "cost", command, str(tmp_path), "--json"],
        capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-500:]
    if command == "show":
        operations = json.loads(done.stdout)["operations"]
        assert sum(one["name"].endswith(", out") for one in operations) == 3 + 58 * 257
        # A sum waits for all of its summands: the last norm for the experts of the last layer.
        assert max(len(one["inputs"]) for one in operations) >= 257
