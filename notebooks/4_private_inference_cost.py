# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 4. Private inference: where the gigabytes go
#
# **Question.** A client has a text, a server has a network, and neither may see the other's data. One forward pass of GPT-2 then takes gigabytes of traffic, and minutes. Which parts cause them, and which part can a network do without?
#
# **The number.** 65 %: the share of GELU in those bytes.
#
# **What you need.** Beside your own PyTorch run `pip install '.[all]'` in a clone of this repository, and `pip install jupyterlab`. Start Jupyter from that environment. The simulator needs a label and sizes, no weights and no PyTorch. Every cell takes a second. The last section uses measured perplexities of trained networks from `benchmarks/results`.

# %%
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import aero

plt.rcParams.update(aero.analysis.FIGURE_STYLE)


def gigabytes(label, **sizes):
    """Bytes that both parties send in one forward pass, in units of 1e9."""
    return aero.mpc.simulate(label, **sizes).comm_bytes / 1e9


# %% [markdown]
# ## One forward pass, part by part
#
# Two-party protocols compute sums for free, products with homomorphic encryption, and everything that *compares* (ReLU, the clipping in exp and GELU, the maximum in softmax) with oblivious transfers, bit by bit. The bytes therefore follow the nonlinear elements, not the FLOPs.
#
# A label names the nonlinearities that a network keeps: softmax (`SM`), LayerNorm (`LN`), GELU (`G`) or ReLU (`R`). `SM+ScFuFFN` keeps softmax only: its FFNs are one linear layer with learned scales.

# %% tags=["gallery=gigabytes_by_part"]
NAMES = {
    "SM+LN+G": "GPT-2 (SM+LN+G)",
    "SM+LN+R": "ReLU for GELU (SM+LN+R)",
    "SM+R": "and no LayerNorm (SM+R)",
    "SM+ScFuFFN": "softmax only (SM+ScFuFFN)",
}
reports = {label: aero.mpc.simulate(label) for label in NAMES}
fig, axes = plt.subplots(figsize=(8.5, 2.8))
aero.analysis.plot_bytes_by_kind(
    {
        NAMES[label]: {kind: cost.comm_bytes for kind, cost in report.by_kind.items()}
        for label, report in reports.items()
    },
    title="What two parties send to compute 128 tokens in private, at GPT-2's size",
    axes=axes,
)
fig.legend(loc="outside lower center", ncols=6)
plt.show()

# %% [markdown]
# GELU causes most of the baseline's bytes: $128 \cdot 3072$ elements in each of 12 layers, each a polynomial and several comparisons. LayerNorm is a smaller part. Softmax causes most bytes of the softmax-only network.
#
# Every formula comes from the protocol's source. Two operations are inferred from the paper's totals: a truncation of the scores and one LayerNorm more. The communication columns of the tables of the paper's version 2 check the rest:

# %%
from aero import paper

cells = paper.compare_with_paper([4, 5, 6, 7])
largest = max(cell.paper_gb for cell in cells)
fig, axes = plt.subplots(figsize=(5.2, 3.2))
axes.plot([0, largest], [0, largest], color="0.6", linewidth=1)
axes.plot([c.paper_gb for c in cells], [c.one_more_layernorm_gb for c in cells], "o", markersize=5)
axes.set(xlabel="the paper, GB", ylabel="simulated, GB", title="Tables 4 to 7 of the paper")
plt.show()
ratios = [c.one_more_layernorm_ratio for c in cells]
print(f"{len(cells)} cells, simulated / paper: median {np.median(ratios):.4f}")
print(f"{sum(abs(ratio - 1) < 0.0015 for ratio in ratios)} of them within 0.15 %")

# %% [markdown]
# (The paper's totals hold one LayerNorm more than its list of operators; with exactly what it lists ours are slightly lower. `python -m benchmarks.paper costs` prints every cell.) Two real parties agree with the simulator too ([measured](../benchmarks/results/private_effect_amd_epyc_202611.md), `benchmarks/private/measure_networks.py`).
#
# ## Minutes are not gigabytes
#
# Time has three parts: computing on ciphertexts, sending bytes, and waiting for messages that depend on each other. The link decides which part is largest.

# %%
networks = ["lan-1gbps", "wan-400mbps", "wan-100mbps"]
fig, axes = plt.subplots(1, 3, figsize=(9.5, 2.6), sharey=True)
for panel, network in zip(axes, networks):
    link = aero.mpc.network_profile(network)
    left = np.zeros(len(NAMES))
    for part in ("compute", "transfer", "rounds"):
        times = [reports[label].latency(network).total.to_dict() for label in NAMES]
        width = np.array([time[f"{part}_seconds"] / 60 for time in times])
        panel.barh(list(NAMES), width, left=left, label=part)
        left += width
    milliseconds = 1e3 * link.round_trip_seconds
    panel.set(title=f"{link.uplink_mbps:g} Mbit/s, {milliseconds:g} ms", xlabel="minutes")
axes[0].invert_yaxis()
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# ## Six stacks, six answers
#
# Six stacks price the same network at the same sizes. `spu-2024` fits the paper's bytes. `spu-0.9.5` is SPU's later release. `openbumblebee` is a fork with better protocols for exactly these functions. `spu-semi2k` needs a dealer and `spu-aby3` a third party, so fewer bytes there ask for more trust. `spu-securenn` needs a third party too, and sends most of all. The saving of a network belongs to the stack as much as to the network.

# %%
stacks = aero.mpc.stack_names()
table = {label: [gigabytes(label, stack=stack) for stack in stacks] for label in NAMES}
saved = [first / last for first, last in zip(table["SM+LN+G"], table["SM+ScFuFFN"])]
print(f"{'GB':12}", *(f"{stack:>14}" for stack in stacks))
for label, row in table.items():
    print(f"{label:12}", *(f"{value:14.2f}" for value in row))
print(f"{'saved':12}", *(f"{factor:8.1f} times" for factor in saved))

# %% [markdown]
# OpenBumbleBee computes GELU for a fraction of the bytes, so the paper's first step, GELU to ReLU, saves far less there. A claim of fewer bytes must name its stack.
#
# ## What if?
#
# Change the numbers and run the cell again. Each is a keyword of `mpc.simulate`: `num_heads` and `context_length` belong to the network, `exp_squarings`, `causal_skip` and many others to the stack (`mpc.stack_fields("spu-2024")`).


# %%
def what_if(label="SM+ScFuFFN", *, heads=12, tokens=128, width=768, layers=12, **changes):
    """Prints the network, gigabytes, and minutes on a 400 Mbit/s line."""
    report = aero.mpc.simulate(
        label, num_heads=heads, head_dim=width // heads, context_length=tokens, width=width,
        hidden_width=4 * width, num_layers=layers, **changes,
    )  # fmt: skip
    minutes = report.latency("wan-400mbps").minutes
    sizes = f"{heads:2} heads, {tokens} tokens, width {width:4}, {layers} layers"
    note = ", ".join(f"{name}={value}" for name, value in changes.items())
    print(f"{label:10}  {sizes}: {report.comm_bytes / 1e9:6.2f} GB, {minutes:5.1f} minutes  {note}")


# %%
what_if("SM+LN+G")
what_if("SM+ScFuFFN")
what_if("SM+ScFuFFN", heads=6)
what_if("SM+ScFuFFN", heads=4, width=1024)
what_if("SM+FN+R", heads=4)  # ReLU back, LayerNorm replaced by one that folds into the weights
what_if("SM+ScFuFFN", tokens=512)
what_if("SM+ScFuFFN", exp_squarings=5)
what_if("SM+ScFuFFN", causal_skip=True)

# %% [markdown]
# The curves below add one network. `SM+FN+R` has ReLU and, in place of LayerNorm, a normalization by *running* statistics that folds into the weights and costs nothing. Softmax has $L \cdot H \cdot T^2$ elements. Width is therefore nearly free, heads are not, and context costs the most.

# %%
curves = {
    "heads": ("num_heads", [1, 2, 4, 6, 8, 12]),
    "width": ("width", [384, 768, 1152, 1536]),
    "tokens": ("context_length", [128, 256, 384, 512]),
}
fig, axes = plt.subplots(1, 3, figsize=(9.5, 2.8), sharey=True)
for panel, (name, (field, values)) in zip(axes, curves.items()):
    for label in ("SM+LN+G", "SM+FN+R", "SM+ScFuFFN"):
        sizes = [{field: value} for value in values]
        if field == "num_heads":
            sizes = [{**size, "head_dim": 768 // size["num_heads"]} for size in sizes]
        if field == "width":
            sizes = [{"width": w, "head_dim": w // 12, "hidden_width": 4 * w} for w in values]
        panel.plot(values, [gigabytes(label, **size) for size in sizes], "o-", label=label)
    panel.set(xlabel=name, yscale="log", xticks=values)
    panel.grid(alpha=0.25)
axes[0].set_ylabel("GB, both parties")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# ## The protocol has slack too
#
# Some optimizations need no change of the network. `aero-optimized` computes the same function: the server knows the weights in the clear, scores above the diagonal cost nothing, and layouts are better. `aero-approximate` adds a coarser exp and one query row in the last layer. `aero cost optimizations` lists each with its assumptions and its implementations.

# %%
ladder = ["spu-2024", "aero-optimized", "aero-approximate"]
fig, axes = plt.subplots(figsize=(8.5, 2.5))
for index, label in enumerate(["SM+LN+G", "SM+FN+R", "SM+ScFuFFN"]):
    values = [gigabytes(label, stack=stack) for stack in ladder]
    bars = axes.bar(np.arange(3) + 0.27 * (index - 1), values, width=0.25, label=label)
    axes.bar_label(bars, [f"{value:.1f}" for value in values], fontsize="small")
axes.set_xticks(range(3), ladder)
axes.set(ylabel="GB, both parties", title="GPT-2, 128 tokens")
axes.legend()
plt.show()

# %% [markdown]
# ## Bytes against quality: the Pareto front
#
# A cheap network is useful only if it is good. The figure shows measured perplexities of trained networks against the bytes of one private pass at their own size. Bars reach from the best to the worst of three seeds. A dashed line joins networks that no other beats. The first figure has the five networks of the demo: six layers of one width, the softmax-only ones with one head.

# %% tags=["gallery=pareto_front"]
results = Path("../benchmarks/results")
# Written by `make demo SEEDS=3`: a million tokens each, three seeds.
records = json.loads(sorted(results.glob("demo_*.json"))[-1].read_text())["networks"]
names = [record["name"] for record in records]
perplexities = [record["perplexity"]["values"] for record in records]
costs = [
    record["private_inference"]["trained"]["spu-2024"]["comm_bytes"] / 1e9 for record in records
]
fig, axes = plt.subplots(figsize=(8.5, 3.8))
aero.analysis.plot_pareto(costs, perplexities, names, named=range(len(names)), axes=axes)
axes.margins(x=0.15)
axes.set_title("six layers of one width, a million tokens of Python each")
plt.show()

# %% [markdown]
# The curves above show that heads cost bytes and width does not. The next figure therefore changes the shape as well, and names the networks that the text speaks of. The baselines get every change that our networks get: ReLU, one head, half of the layers, the start of the embeddings, and a learning rate of their own at both lengths of training. No network takes more training FLOPs than `SM+LN+G` does in the same panel.

# %% tags=["gallery=front"]
# Written by `python -m benchmarks.paper front front_long`: a first seed finds the learning rates, three are shown.
targets = json.loads(sorted(results.glob("front_mini_*.json"))[-1].read_text())["targets"]
KINDS = {"LN": "LayerNorm", "FN": "foldable norm", "R": "no norm", "ScFuFFN": "no norm"}
NAMED = ["SM+LN+G", "SM+FN+R", "SM+ScFuFFN, 4 layers of 320", "SM+ScFuFFN, 1 head, equal FLOPs"]
fig, axes = plt.subplots(1, 2, figsize=(11, 5), dpi=66)
for panel, target in zip(axes, targets):
    # All but the teacher and, far above the others, the baseline's published start on the left.
    rows = [
        row
        for row in target["rows"]
        if not row["name"].endswith("a quarter of the tokens")
        and row["statistics"]["perplexity"]["mean"] < 80
    ]
    baseline = rows[0]["statistics"]  # of SM+LN+G
    aero.analysis.plot_pareto(
        [row["statistics"]["gigabytes"]["mean"] for row in rows],
        [row["statistics"]["perplexity"]["values"] for row in rows],
        [row["name"] for row in rows],
        series=[KINDS[row["label"].split("+")[1]] for row in rows],
        series_order=[*dict.fromkeys(KINDS.values())],
        named=[i for i, row in enumerate(rows) if row["name"] in NAMED],
        title=f"{baseline['tokens']['mean'] / 1e6:.2g} million tokens, {baseline['training_flops']['mean']:.1e} FLOPs",
        axes=panel,
    )
    panel.margins(x=0.25, y=0.15)
fig.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# ## Conclusion
#
# - The bytes of a private pass sit in nonlinear elements: most of the baseline's in GELU, most of a softmax-only network's in softmax. FLOPs hardly matter for bytes, but they matter for minutes on a fast line.
# - What softmax-only saves belongs to the stack, and ReLU in GELU's place alone saves most of it. Protocols save too: the same softmax-only network takes a third of the bytes with `aero-approximate`, whose exp is coarser.
# - Only trainings show the quality. In the demo, after a million tokens, the perplexity of the softmax-only network is lower than the LayerNorm baseline's, at a fraction of the bytes. It looks at the last four tokens at once (`S4`), and copies what stood there before. That lead is not settled: GPT-2's kind with `S4` is ahead on tokens that repeat nothing ([what the shift brings](../docs/results.md#what-do-the-last-four-tokens-bring)), and without `S4` it is ahead after two million tokens in the means ([three seeds, no test](../docs/how_to/train.md#start-from-a-trained-network)).
# - Shape saves bytes too, and needs no protocol. A network without activations, in the baseline's own shape but with one head, has a sixth of the bytes, and one with ReLU and a foldable norm a fifth. At equal training FLOPs it is undecided which of the two has the lower perplexity. Four wide layers are cheaper still. They have low perplexity after a short training and fall behind after a longer one ([every comparison](../docs/results.md#perplexity-against-private-cost)).
#
# `aero cost show 'SM+ScFuFFN' --html report.html` draws one cost report operation by operation; `aero cost sweep` goes through grids of networks and stacks. **Next:** [5. The entropy of the model you have](5_the_model_you_have.ipynb).
