"""Loads the kernel of a folder where this package cannot be imported, and uses it.

A program of its own, as it runs under QEMU too: packaging/build_kernel.py.
"""

import copy
import functools
import sys
from pathlib import Path

sys.modules["aero"] = None  # type: ignore[assignment]

import kernels  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402
from transformers.integrations import hub_kernels  # noqa: E402

FULL = torch.ones(5, 5)
# A torch with CUDA would ask for a variant with CUDA.
get_kernel = functools.partial(kernels.get_kernel, backend="cpu")
aero = kernels.get_local_kernel(Path(sys.argv[1]), backend="cpu")
assert get_kernel("someone/aero", version=1) is aero  # LOCAL_KERNELS names the folder
torch.manual_seed(0)
q, k, v = (torch.randn(2, 2, 5, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))


def plain(q, k, v):
    p = (q @ k.mT / 8**0.5).masked_fill(FULL.tril() == 0, -torch.inf).softmax(-1)
    return p @ v, torch.special.entr(p).sum(-1)


def native(q, k, v):
    return aero.attention_entropy(q, k, v, is_causal=True)[:2]


def gap(one, other):
    pairs = zip(one, other, strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def gap_to_plain(function):
    def gradients(function):
        return torch.autograd.grad(sum((x**2).sum() for x in function(q, k, v)), (q, k, v))

    values = gap(function(q, k, v), plain(q, k, v))
    return max(values, gap(gradients(function), gradients(plain)))


compiled = torch.compile(native, fullgraph=True, backend="aot_eager")
gaps = [gap_to_plain(native), gap_to_plain(compiled)]
x, w, b, one = torch.randn(3, 4), torch.randn(4, 4), torch.randn(4), torch.ones(1)
y = aero.scaled_ffn(x, w, b, alpha=2 * one, beta=3 * one)
gaps.append(gap([y], [3 * x + (x @ w + b) / 2]))

# This transformers asks for a later release of `kernels`, whose additions are not needed here.
hub_kernels.is_kernels_available = lambda *_: True
hub_kernels.get_kernel_hub = get_kernel
config = LlamaConfig(
    vocab_size=50,
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    bos_token_id=0,
    eos_token_id=1,
)
eager, fused = (
    LlamaForCausalLM._from_config(copy.deepcopy(config), attn_implementation=name).eval()
    for name in ("eager", "someone/aero")
)
fused.load_state_dict(eager.state_dict())
calls = []
module = sys.modules[f"{aero.__name__}.transformers_attention"]
attention_entropy = module.attention_entropy
module.attention_entropy = lambda *a, **s: calls.append(1) or attention_entropy(*a, **s)
tokens = torch.randint(2, 50, (2, 7))
for mask in (torch.ones(2, 7), torch.tensor([[1.0] * 7, [0, 0, 1, 1, 1, 1, 1]])):
    logits = [model(tokens, attention_mask=mask.long()).logits for model in (eager, fused)]
    gaps.append((logits[0] - logits[1])[mask.bool()].abs().max().item())
assert len(calls) == 4  # two layers, two masks
settings = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
generated = [model.generate(tokens, **settings).tolist() for model in (eager, fused)]
assert generated[0] == generated[1]

refused = []
for settings in (
    {"dropout": 0.1},
    {"softcap": 30.0},
    {"sliding_window": 3},
    {"attention_mask": torch.zeros(2, 1, 5, 5)},
    {"cu_seq_lens_q": torch.tensor([0, 2, 5])},
):
    try:
        aero.flash_attn_forward(nn.Identity(), q, k, v, **{"attention_mask": None, **settings})
    except ValueError as error:
        refused.append(str(error))
keys = torch.tensor([[1] * 5, [0, 0, 1, 1, 1]])
both = keys[:, None, None, :].bool() & FULL.tril().bool()
outputs = [aero.flash_attn_forward(nn.Identity(), q, k, v, mask)[0] for mask in (keys, both)]
gaps.append(gap(outputs[:1], outputs[1:]))
# In float64, also compiled; in float32 a product, logits of two layers twice; one mask twice.
for found, most in zip(gaps, (1e-13, 1e-13, 1e-5, 1e-5, 1e-5, 0), strict=True):
    assert found <= most, gaps
assert [text.partition("Identity ")[2] for text in refused] == [
    "asks for dropout 0.1 of attention weights; set it to 0",
    "needs softcap, which is not supported; keep 'sdpa'",
    "has a sliding window of 3; keep 'sdpa'",
    "needs a boolean attention_mask, got torch.float32",
    "got packed sequences without a mask; keep 'sdpa'",
]
assert sys.modules["aero"] is None
print(f"torch.ops.{aero.__name__} computes what plain PyTorch does, to {max(gaps):.0e}")
