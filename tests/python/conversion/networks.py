"""The networks that the conversion tests start from, with weights as after training."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

from aero.models import AeroConfig, AeroForCausalLM

VOCABULARY = 61
CONTEXT = 20

PYTHIA = {
    "family": "pythia",
    "rotary_fraction": 0.25,
    "parallel_residual": True,
    "tied_embeddings": False,
}
FAMILIES = {"gpt2": {}, "pythia": PYTHIA}


class Attention(nn.Module):
    """Like nanoGPT's, with a function in place of a module for the softmax."""

    def __init__(self, width, num_heads, bias):
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)
        self.resid_dropout = nn.Dropout(0.1)
        self.n_head = num_heads
        self.dropout = 0.0

    def forward(self, x):
        parts = self.c_attn(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    def __init__(self, width, bias, activation):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.c_proj = nn.Linear(4 * width, width, bias=bias)
        self.function = activation
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(self.c_proj(self.function(self.c_fc(x))))


class Norm(nn.Module):
    """LayerNorm with an optional bias."""

    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Block(nn.Module):
    def __init__(self, width, num_heads, bias, activation):
        super().__init__()
        self.ln_1 = Norm(width, bias)
        self.attn = Attention(width, num_heads, bias)
        self.ln_2 = Norm(width, bias)
        self.mlp = FeedForward(width, bias, activation)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """A module tree with nanoGPT's names."""

    def __init__(self, *, bias=True, activation=F.gelu, tied=True, num_layers=3):
        super().__init__()
        width, num_heads = 24, 3
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, width),
                "wpe": nn.Embedding(CONTEXT, width),
                "h": nn.ModuleList(
                    Block(width, num_heads, bias, activation) for _ in range(num_layers)
                ),
                "ln_f": Norm(width, bias),
            }
        )
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            self.transformer.wte.weight = self.lm_head.weight

    def forward(self, tokens, targets=None):
        tree = self.transformer
        x = tree.wte(tokens) + tree.wpe(torch.arange(tokens.shape[1]))
        for block in tree.h:
            x = block(x)
        x = tree.ln_f(x)
        if targets is None:  # as nanoGPT, only the last position
            return self.lm_head(x[:, [-1]]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def with_trained_weights(model, seed=0):
    """Weights, biases, gains and scales as far from their start as training takes them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_gain = "ln_" in name or "norm" in name or name.endswith((".alpha", ".beta"))
            if parameter.dim() > 1 and "temperature" not in name:
                parameter.copy_(0.15 * noise)
            else:
                parameter.copy_((1.0 if is_gain or "temperature" in name else 0.0) + 0.1 * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean_square"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    return model.eval()


def gpt2(**fields):
    sizes = {"n_layer": 3, "n_embd": 24, "n_head": 3, "n_positions": CONTEXT}
    sizes |= {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None}
    dropout = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
    return with_trained_weights(GPT2LMHeadModel(GPT2Config(**{**sizes, **dropout, **fields})))


def pythia(**fields):
    sizes = {"num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 100, "vocab_size": VOCABULARY}
    sizes |= {"max_position_embeddings": CONTEXT}
    return with_trained_weights(GPTNeoXForCausalLM(GPTNeoXConfig(**{**sizes, **fields})))


def nano_gpt(**fields):
    return with_trained_weights(NanoGPT(**fields))


SOURCES = {"gpt2": gpt2, "pythia": pythia, "nanogpt": nano_gpt}
HUGGING_FACE = {
    "gpt2": gpt2,
    "gpt2, untied": lambda: gpt2(tie_word_embeddings=False),
    "pythia": pythia,
    "pythia, sequential": lambda: pythia(use_parallel_residual=False),
}


def aero_network(label, family="gpt2", *, seed=0, **overrides):
    config = AeroConfig.from_label(
        label, model="tiny", **{"vocab_size": VOCABULARY, **FAMILIES[family], **overrides}
    )
    return with_trained_weights(AeroForCausalLM(config), seed)


def tokens(rows=2, length=CONTEXT):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY, (rows, length), generator=generator)


@torch.no_grad()
def logits_of(model, ids):
    """[B, T, V] of a model of any class."""
    if isinstance(model, NanoGPT):
        return model(ids, ids)[0]
    return model(ids).logits


def relative_difference(actual, expected):
    return ((actual - expected).norm() / expected.norm()).item()


def far_from_its_start(label, **overrides):
    """A tiny network whose weights are far from their start, as a trained one's are."""
    torch.manual_seed(1)
    model = AeroForCausalLM(AeroConfig.from_label(label, model="tiny", **overrides))
    for name, parameter in model.named_parameters():
        mean = 1.0 if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")) else 0.0
        torch.nn.init.normal_(parameter, mean, 0.2)
    return model.eval()
