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
# # 2. Entropy regularization: a penalty that keeps heads useful
#
# **Question.** Without LayerNorm and GELU, attention heads end at extremes ([notebook 1](1_attention_entropy.ipynb)). AERO adds a penalty on each head's entropy, with thresholds that are learned too. Does it move the heads? Does it help the perplexity? How do its settings act?
#
# **The number.** An eighth: at that share of the published weight the network here is better than the plain one, with either of two seeds. The full weight moves every head and gains nothing.
#
# **What you need.** Beside your own PyTorch run `pip install '.[all]'` in a clone of this repository, and `pip install jupyterlab`. Start Jupyter from that environment. The networks learn the Python standard library of your interpreter. Everything trains on one CPU core in a few minutes.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np
import torch

import aero

plt.rcParams.update(aero.analysis.FIGURE_STYLE)

# %% [markdown]
# ## The penalty
#
# Every head $h$ of every layer has a threshold $\theta_h$, a share of the largest possible entropy $E_{\max} = \log T$. A row whose entropy $E$ stays within a margin $\gamma E_{\max}$ of $\theta_h E_{\max}$ costs nothing; outside, it costs the squared distance:
#
# $$\text{penalty} = \begin{cases} (E - \theta_h E_{\max})^2 & \text{if } |E - \theta_h E_{\max}| > \gamma E_{\max} \\ 0 & \text{else.} \end{cases}$$
#
# $\lambda$ times the penalty is added to the loss. The gradient reaches $E$, and through it queries, keys and temperatures, and also $\theta_h$: if a head cannot reach its threshold, the threshold moves to the head.

# %%
context = 128
possible = torch.linspace(0, math.log(context), 200)
thresholds = torch.full((1, 1), 0.5)
fig, axes = plt.subplots(figsize=(6, 2.9))
for margin in (0.0, 0.1, 0.2, 0.3):
    penalty = [
        aero.ops.entropy_regularization(
            value.view(1, 1, 1, 1), thresholds, margin=margin, context_length=context
        )
        for value in possible
    ]
    axes.plot(possible, penalty, label=f"margin {margin:g}")
axes.axvline(0.5 * math.log(context), color="0.5", linestyle=":")
axes.set(xlabel="entropy of one row (nats)", ylabel="penalty", title="threshold 0.5, T = 128")
axes.legend(loc="upper center", ncols=2, facecolor="white", frameon=True, edgecolor="none")
plt.show()

# %% [markdown]
# ## Does it work?
#
# Three networks differ in one thing. `SM+ScFuFFN` is plain softmax-only. `SM(t)+ScFuFFN` has a learned temperature per head and position. `EReg(SM(t)+ScFuFFN)` has the penalty too. They learn to predict the next byte of Python source.


# %%
def trained(label, folder, *more, seed=0):
    """The run of a label under the settings of bytes.yaml and some more."""
    recipe = aero.train.load_recipe("demo", config="bytes.yaml", settings=more)
    output = f"../runs/notebooks/{folder}"
    (run,) = aero.train.plan_runs(recipe, [label], seeds=[seed], output=output)
    aero.train.train_runs([run], cache_dir="../runs/corpora", say=lambda message: None)
    return aero.report.read_run(run.folder.path)


EREG = "EReg(SM(t)+ScFuFFN)"
runs = {label: trained(label, "bytes") for label in ("SM+ScFuFFN", "SM(t)+ScFuFFN", EREG)}

# %%
for label, run in runs.items():
    print(f"{label:19}  perplexity per byte {run.evaluation.perplexity:.2f}")

# %% [markdown]
# Look at the heads before judging the perplexities.

# %% tags=["gallery=entropy_regularization"]
fig, axes = plt.subplots(1, 3, figsize=(9.5, 3), sharey=True)
for panel, (label, run) in zip(axes, runs.items()):
    reached = run.analysis.values.head_entropy_normalized_visible
    aero.analysis.plot_entropy_heat_map(reached, title=label, axes=panel)
    panel.label_outer()
fig.colorbar(panel.collections[0], ax=axes, label="of the reachable entropy")
plt.show()

# %%
fig, axes = plt.subplots(1, 3, figsize=(9.5, 2.9), sharey=True)
for panel, (label, run) in zip(axes, runs.items()):
    lines = run.metrics.entropy
    history = np.mean([line.head_entropy for line in lines], axis=2)
    steps = [line.step for line in lines]
    aero.analysis.plot_layerwise_entropy(steps, history, context, title=label, axes=panel)
    panel.label_outer()
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
plt.show()

# %% [markdown]
# The penalty moves the heads. Temperatures alone, which start at 0.01 as in the paper, sharpen every score a hundredfold. The last layer then collapses to a single token early in training, and never recovers. The penalty pulls the same start to the thresholds, in all layers, from above and from below.
#
# Its effect on the perplexity is less than the difference between two seeds. So far it moves heads without need. The next sections change its settings.
#
# ## How wide should the margin be?
#
# The paper's listing has $\gamma = 0.10$, the authors' training script 0.20. A margin of 0 punishes every deviation. A wide margin leaves heads free.

# %%
margins = [0.0, 0.1, 0.2, 0.3]
sweep = {
    gamma: runs[EREG]
    if gamma == 0.1
    else trained(EREG, f"margin-{gamma:g}", f"regularization.tolerance_margin={gamma}")
    for gamma in margins
}
fig, axes = plt.subplots(1, 2, figsize=(9.5, 3), width_ratios=[2, 3])
axes[0].plot(margins, [run.evaluation.perplexity for run in sweep.values()], "o-")
axes[0].set(xlabel="margin", ylabel="perplexity per byte")
shares = {
    f"margin {gamma:g}": run.analysis.values.quarters.log_context for gamma, run in sweep.items()
}
aero.analysis.plot_quarter_shares(shares, title="quarters of log T", axes=axes[1])
axes[1].legend(ncols=2, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.2))
plt.show()

# %% [markdown]
# The two wide margins are better here. Nearly equal entropies of all heads are no goal in themselves.
#
# ## How strong should the penalty be?
#
# Is the published weight too strong for so small a network? Differences are small now, so two seeds.

# %%
WEAK = "regularization.entropy_weight=1e-5"
SEEDS = [0, 1]
others = {
    "plain SM+ScFuFFN": [trained("SM+ScFuFFN", "bytes", seed=seed) for seed in SEEDS],
    "lambda 8e-5": [trained(EREG, "bytes", seed=seed) for seed in SEEDS],
    "lambda 1e-5": [trained(EREG, "weak", WEAK, seed=seed) for seed in SEEDS],
}


def summary(name, repeated):
    """A line: perplexity per byte of each seed, and the range of head entropies."""
    perplexities = ", ".join(f"{run.evaluation.perplexity:.2f}" for run in repeated)
    nats = np.array([run.analysis.values.head_entropy for run in repeated])
    return f"{name:16}  perplexity {perplexities}  heads {nats.min():.2f} to {nats.max():.2f} nats"


# %%
print("\n".join(summary(*pair) for pair in others.items()))

# %% [markdown]
# A weaker penalty helps. With an eighth of $\lambda$ the heads keep entropies of their own. At either seed the network is better than the plain one of the same seed, by more than the two seeds differ. No test judges this.
#
# ## Thresholds learn
#
# All start at 0.5, and a threshold has a gradient only while rows of its head lie outside the margin. Under the strong penalty the heads come to the thresholds; under the weak one both move, as the panel on the right shows by layer.

# %%
fig, axes = plt.subplots(1, 3, figsize=(9.5, 2.8))
for panel, title in zip(axes, ("lambda 8e-5", "lambda 1e-5")):
    learned = np.array(others[title][0].analysis.values.thresholds)
    aero.analysis.plot_entropy_heat_map(learned, title=title, axes=panel)
axes[2].errorbar(range(len(learned)), learned.mean(1), learned.std(1), fmt="o", capsize=3)
axes[2].axhline(0.5, color="0.5", linestyle=":")
axes[2].set(title="mean and spread of heads", xlabel="layer", ylabel="threshold", xticks=range(4))
plt.show()

# %% [markdown]
# Early layers, which attend broadly, raise their thresholds. Heads of one layer end at different thresholds, so one threshold for all would not do.
#
# ## `position_sum` against `query_mean`
#
# The paper has two definitions. Its PyTorch listing penalises every *row* and adds up over batch and positions (`position_sum`, as the authors' code does). Its Algorithm 1 averages a head's rows first and penalises the *mean* (`query_mean`). The two differ by more than a unit:
#
# - `position_sum` grows with the tokens in a batch, so its $\lambda$ belongs to a number of tokens. Training scales the sum to that number, whatever the batch, the micro-batch or the processes. `query_mean` does not grow.
# - `query_mean` is content if half the rows are above the threshold and half below. `position_sum` wants every row near it, even the first row, which sees one key and cannot have any entropy but 0.

# %%
# Uniform attention, threshold 0.5, margin 0.1.
for batch in (1, 4, 16):
    rows = torch.arange(1, context + 1).log().expand(1, batch, 1, context).contiguous()
    total, mean = (
        aero.ops.entropy_regularization(rows, thresholds, reduction=reduction).item()
        for reduction in ("position_sum", "query_mean")
    )
    print(f"batch {batch:2}  position_sum {total:7.1f}  query_mean {mean:.3f}")

fig, axes = plt.subplots(figsize=(6, 2.9))
for rule in ("log_context", "log_visible"):
    rows = torch.arange(1, context + 1).log().view(1, 1, 1, context).requires_grad_()
    aero.ops.entropy_regularization(rows, thresholds, max_entropy=rule).backward()
    axes.plot(rows.grad.flatten(), label=rule)
axes.axhline(0, color="0.5", linewidth=1)
axes.set(xlabel="query position i", ylabel="pull on its entropy")
axes.set_title("gradient of position_sum at uniform attention")
axes.legend()
plt.show()

# %% [markdown]
# The paper's $E_{\max} = \log T$ pulls the first rows *up* although they are already uniform. The negative gradients at the left show this. `max_entropy="log_visible"` measures each row by its visible keys, $\log(i+1)$, and pulls all rows the same way.

# %% [markdown]
# ## Conclusion
#
# **The answer.** Yes, it moves the heads, and no, that alone does not help the perplexity. Use it where temperatures are learned, which collapse heads without it; start with less than the published weight, look at the heads, and let several seeds decide whether it pays on your network. Usually [it does not](../docs/explanation/entropy_penalty.md#does-it-pay).
#
# - The penalty moves heads fast and in both directions. It undoes overload, and the collapse that low temperatures cause.
# - Its benefit depends on the dose. With an eighth of the weight that gives all heads the same entropy, or with a wide margin, this one seed's network is a few per cent better than the plain one.
# - The right dose depends on the network. With six layers and a vocabulary of 1,024 an eighth of the weight lets the last layers collapse. Whether it or a wide margin changes the perplexity there is undecided ([measured](../benchmarks/results/entropy_penalty_amd_epyc_202611.md)), and with embeddings of variance 1 that weight is clearly too weak ([measured](../benchmarks/results/penalty_unit_mini_amd_epyc_202611.md)). In the demo, whose embeddings start at variance 1, three seeds do not decide whether the penalty changes the perplexity.
# - Temperatures that start low are part of the recipe: they pull the early heads off uniform attention, and the penalty catches the late ones.
# - `position_sum` with $E_{\max} = \log T$, the published penalty, pulls the first rows of a sequence towards entropies that they cannot reach. `query_mean` does not, and lets rows differ.
#
# One or two seeds and 400 steps: differences of three tenths in perplexity mean nothing here. `python -m benchmarks.paper figure18` repeats the margins and `python -m benchmarks.paper penalty` the other knobs, over seeds and at another size. **Next:** [3. Softmax-only architectures](3_softmax_only_architectures.ipynb).
