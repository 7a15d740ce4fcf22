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
# # 1. Attention entropy: collapse and overload
#
# **Question.** LayerNorm and GELU are expensive to compute on secret data, so we take them out of a transformer. What happens to attention, and can one number per head show it?
#
# **The number.** 3.88 nats: the entropy of a causal head that looks everywhere, at 128 tokens. Without LayerNorm the early layers stay there.
#
# **What you need.** Beside your own PyTorch run `pip install '.[all]'` in a clone of this repository, and `pip install jupyterlab`. Start Jupyter from that environment. The networks learn the Python standard library of your interpreter. Everything below trains on one CPU core in a few minutes. You can also just read on.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np
import torch

import aero

plt.rcParams.update(aero.analysis.FIGURE_STYLE)
torch.manual_seed(0)

# %% [markdown]
# ## The number
#
# Every token of a sequence, a *query*, spreads attention $a_{i1}, \dots, a_{in}$ over the $n$ tokens it may see, its *keys*. The entropy of that row,
#
# $$E_i = -\sum_j a_{ij} \log a_{ij},$$
#
# is 0 when one key has all the attention and $\log n$ when all have the same. $e^{E_i}$ is the number of keys the row effectively looks at. The entropy of a *head* is the mean over its rows. `aero.ops.attention_entropy` computes the entropies and the attention output in one pass, with gradients.
#
# Here is one attention head with random scores at three temperatures. A temperature $t$ divides the scores before the softmax: low sharpens, high flattens.

# %%
T, width = 64, 32
q, k = torch.randn(2, 1, 1, T, width)
fig, axes = plt.subplots(1, 3, figsize=(8.5, 3.1))
for panel, (t, name) in zip(axes, [(0.1, "collapse"), (1.0, "between"), (10.0, "overload")]):
    _, entropy, _ = aero.ops.attention_entropy(q, k, k, temperature=torch.tensor(t), is_causal=True)
    scores = (q @ k.mT / math.sqrt(width) / t)[0, 0]
    weights = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf).softmax(-1)
    panel.imshow(weights.sqrt(), cmap="viridis", vmin=0, vmax=1)
    panel.set(title=f"{name}: t = {t:g}", xlabel="key", ylabel="query")
    panel.annotate(
        f"mean entropy {entropy.mean():.2f} nats\n{entropy.mean().exp():.1f} keys",
        (T - 2, 2), color="white", ha="right", va="top", fontsize="small",
    )  # fmt: skip
plt.show()

# %% [markdown]
# On the left every row picks one token: *entropy collapse*. The head copies. With such large scores next to no gradient passes the softmax. On the right every row averages everything it sees: *entropic overload*. The head says the same about every position, whatever the text. Useful heads live between.
#
# ## Closed forms
#
# Three cases can be solved on paper, and the operator agrees.
#
# 1. **Uniform** attention: row $i$ (counted from 0) sees $i+1$ keys, so $E_i = \log(i+1)$. The head's mean over $T$ rows is $\frac1T \log T!$, *not* $\log T$: at $T = 128$ a causal head that looks everywhere stays nearly a nat below it.
# 2. **One-hot** attention: $E_i = 0$.
# 3. **Gaussian scores** $s \sim \mathcal N(0, \sigma^2)$: with $n$ keys, $E \approx \log n - \sigma^2/2$ while $\sigma < \sqrt{2 \log n}$, and for large $n$ it freezes near 0 beyond (Derrida's random energy model: attention at low temperature is a spin glass). Halving the temperature doubles $\sigma$, so the loss of entropy quadruples.

# %%
n = 512
sigma = torch.linspace(0, 6, 25)
with torch.no_grad():
    # Keys along one axis with Gaussian lengths: query (sigma, 0, ..., 0) gives scores N(0, sigma^2).
    repeats = 64
    keys, queries = torch.zeros(1, repeats, n, 16), torch.zeros(1, repeats, len(sigma), 16)
    keys[..., 0] = torch.randn(1, repeats, n)
    queries[..., 0] = sigma
    _, gaussian, _ = aero.ops.attention_entropy(queries, keys, keys, scale=1.0)
    _, uniform, _ = aero.ops.attention_entropy(0 * q, k, k, is_causal=True)

fig, axes = plt.subplots(1, 2, figsize=(8.5, 3.1))
axes[0].plot(uniform[0, 0], linewidth=4, alpha=0.4, label="operator, all scores equal")
axes[0].plot(np.log(np.arange(1, T + 1)), "k--", label="log(i + 1)")
axes[0].axhline(math.log(T), color="0.5", linestyle=":")
axes[0].set(title="uniform attention", xlabel="query position i", ylabel="entropy (nats)")
axes[0].legend()
mean, spread = gaussian[0].mean(0), gaussian[0].std(0)
axes[1].fill_between(sigma, mean - spread, mean + spread, alpha=0.25, linewidth=0)
axes[1].plot(sigma, mean, label=f"operator, n = {n} keys")
axes[1].plot(sigma, (math.log(n) - sigma**2 / 2).clip(min=0), "k--", label="log n - sigma^2 / 2")
axes[1].axvline(math.sqrt(2 * math.log(n)), color="0.5", linestyle=":")
axes[1].set(
    title="Gaussian scores", xlabel="standard deviation of the scores", ylabel="entropy (nats)"
)
axes[1].legend()
plt.show()

# %% [markdown]
# The dotted line on the right is $\sqrt{2 \log n}$, where the formula for large $n$ freezes; 512 keys round the corner off. With random scores, larger scores alone bring collapse. In a network *without LayerNorm* nothing bounds the inputs of queries and keys.
#
# ## Trained networks
#
# Five networks of one size now learn to predict the next byte of Python source. They differ only in their nonlinearities. The labels name the nonlinearities that are left.
#
# | label | softmax | LayerNorm | FFN |
# | --- | --- | --- | --- |
# | `SM+LN+G` | yes | yes | GELU |
# | `SM+G` | yes | no | GELU |
# | `SM+R` | yes | no | ReLU |
# | `SM` | yes | no | two linear layers, nothing between |
# | `SM+ScFuFFN` | yes | no | one linear layer with learned scales |

# %%
LABELS = ["SM+LN+G", "SM+G", "SM+R", "SM", "SM+ScFuFFN"]
recipe = aero.train.load_recipe("demo", config="bytes.yaml")
plan = aero.train.plan_runs(recipe, LABELS, seeds=[0], output="../runs/notebooks/bytes")
# After an interruption the next call continues; finished runs are reused.
aero.train.train_runs(plan, cache_dir="../runs/corpora", say=lambda message: None)
runs = {run.label: aero.report.read_run(run.folder.path) for run in plan}

# %%
for label, run in runs.items():
    print(f"{label:10}  perplexity per byte {run.evaluation.perplexity:.2f}")

# %% [markdown]
# ### What the heads do
#
# All panels share one scale: the share of the entropy that a causal head can reach, row by row, from 0 to 1. A head that looks at everything alike is yellow. Dark heads look at a single token.

# %% tags=["gallery=entropy_without_nonlinearities"]
context = recipe.model.context_length
heads = {label: np.array(run.analysis.values.head_entropy) for label, run in runs.items()}
fig, axes = plt.subplots(1, 5, figsize=(11, 2.7), sharey=True)
for panel, (label, run) in zip(axes, runs.items()):
    reached = run.analysis.values.head_entropy_normalized_visible
    aero.analysis.plot_entropy_heat_map(reached, title=label, axes=panel)
    panel.label_outer()
fig.colorbar(panel.collections[0], ax=axes, label="of the reachable entropy")
plt.show()

# %% [markdown]
# All five start as published, with embeddings of 0.02 ([another start](../docs/explanation/start.md)). Without LayerNorm the *early* layers then stay at the most that they can reach: they have not learned where to look. In `SM` the *last* layer nears collapse. The paper reports NaN there for larger networks. In `SM+ScFuFFN`, whose FFN is one layer with learned scales, the last layer does not collapse, and the early ones are overloaded too.
#
# ### Two patterns of each network
#
# An entropy summarizes a matrix of attention weights. Here are the heads of least and of most entropy, of the baseline and of the softmax-only network, on the first 64 bytes of held-out text. Brighter cells have more weight.

# %%
data = aero.train.prepare_data(recipe.data, cache_dir="../runs/corpora", context_length=context)
text = torch.from_numpy(data.validation[:64].astype(np.int64)).view(1, 64)
fig, axes = plt.subplots(1, 4, figsize=(11, 3.1), sharey=True)
for pair, label in zip(axes.reshape(2, 2), ["SM+LN+G", "SM+ScFuFFN"]):
    model = aero.AeroForCausalLM.from_pretrained(runs[label].folder / "model")
    maps = aero.entropies(model, text, attention_maps=True).attention_maps  # per layer [1, H, T, T]
    for panel, flat in zip(pair, (heads[label].argmin(), heads[label].argmax())):
        layer, head = np.unravel_index(flat, heads[label].shape)
        panel.imshow(maps[layer][0, head].sqrt(), cmap="viridis", vmin=0, vmax=1)
        nats = heads[label][layer, head]
        panel.set_title(f"{label}\nlayer {layer}, head {head}: {nats:.2f} nats", fontsize="medium")
        panel.set_xlabel("key")
axes[0].set_ylabel("query")
plt.show()

# %% [markdown]
# The sharp head of the baseline looks at recent bytes of certain kinds. The sharp head of the softmax-only network looks at single bytes far back. The overloaded head averages all bytes that it sees, so each row is one even band.
#
# ### Quarters
#
# The paper sorts heads into quarters of $[0, \max]$: the first quarter is collapse, the last is overload. Its $\max$ is the largest head entropy observed; $\log T$ is the same for all networks, so that is what we take here.

# %%
shares = {
    label: np.histogram(entropy, bins=4, range=(0, math.log(context)))[0] / entropy.size
    for label, entropy in heads.items()
}
fig, axes = plt.subplots(figsize=(8.5, 2.6))
aero.analysis.plot_quarter_shares(shares, axes=axes)
axes.legend(ncols=4, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.25))
plt.show()

# %% [markdown]
# ### Entropy during training
#
# Every network starts with uniform heads, because random scores are small. The dotted line is $\log T$. With LayerNorm all layers come down early: the heads specialise. Without it the first two layers never leave the start.

# %%
fig, axes = plt.subplots(1, 5, figsize=(11, 2.8), sharey=True)
for panel, (label, run) in zip(axes, runs.items()):
    lines = run.metrics.entropy
    history = np.mean([line.head_entropy for line in lines], axis=2)
    steps = [line.step for line in lines]
    aero.analysis.plot_layerwise_entropy(steps, history, context, title=label, axes=panel)
    panel.label_outer()
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
plt.show()

# %% [markdown]
# ### Is it the position or the head?
#
# A row that sees few keys cannot have much entropy. We divide each row by the largest entropy of its position, $\log(i+1)$. Then the rows of one head show whether it is overloaded everywhere or only at the start. One line per head; 1 is uniform.

# %%
fig, axes = plt.subplots(1, 2, figsize=(8.5, 3), sharey=True)
position = np.arange(1, context)
for panel, label in zip(axes, ["SM+LN+G", "SM+ScFuFFN"]):
    by_position = runs[label].analysis.arrays["entropy_by_position"]  # [L, H, T]
    share = by_position[:, :, 1:] / np.log(position + 1)
    for layer, color in enumerate(plt.cm.plasma(np.linspace(0, 0.88, len(share)))):
        lines = panel.plot(position, share[layer].T, color=color, linewidth=0.8, alpha=0.8)
        lines[0].set_label(f"layer {layer}")
    panel.set(title=label, xlabel="query position i", ylim=(0, 1.02))
axes[0].set_ylabel("entropy / log(i + 1)")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
plt.show()

# %% [markdown]
# ## Is entropy a cause or a symptom?
#
# We turn the knob by hand. The trained baseline gets a temperature on every head, which changes nothing at $t = 1$. Then we sharpen or flatten all heads together, without retraining.

# %%
baseline = aero.AeroForCausalLM.from_pretrained(runs["SM+LN+G"].folder / "model")
network = aero.convert(baseline, "SM(t)+LN+G")
windows = torch.from_numpy(data.validation.astype(np.int64)).unfold(0, context, context)
tokens = windows[:: len(windows) // 64][:64]  # from all of the held-out text

temperatures = [0.1, 0.25, 0.5, 0.71, 1.0, 1.41, 2.0, 4.0, 10.0]
perplexity, mean_entropy = [], []
for t in temperatures:
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "temperature" in name:
                parameter.fill_(t)
        perplexity.append(network(tokens, labels=tokens).loss.exp().item())
    mean_entropy.append(float(aero.entropies(network, tokens[:8]).summary().head_entropy.mean()))

fig, axes = plt.subplots(1, 2, figsize=(8.5, 3))
axes[0].plot(temperatures, mean_entropy, "o-")
axes[0].axhline(math.lgamma(context + 1) / context, color="0.5", linestyle=":")
axes[0].set(xscale="log", xlabel="temperature of all heads", ylabel="mean entropy (nats)", ylim=0)
axes[1].plot(mean_entropy, perplexity, "o-")
for t, x, y in zip(temperatures, mean_entropy, perplexity):
    if t in (0.1, 1.0, 10.0):
        axes[1].annotate(
            f"t = {t:g}", (x, y), xytext=(0, 7), textcoords="offset points", ha="center"
        )
axes[1].set(xlabel="mean entropy (nats)", ylabel="perplexity per byte", xlim=(0.5, 4.2))
plt.show()

# %% [markdown]
# Both directions hurt. Sharpened tenfold, the same weights have a higher perplexity. Flattened tenfold, attention is a plain average, and the network is worse than any that was trained without LayerNorm. Without retraining, the best mean entropy is the one that training found.
#
# ## Conclusion
#
# - The entropy of a head measures how many tokens it looks at: 0 is collapse, $\frac1T \log T!$ is overload. The operator agrees with the closed forms of both ends.
# - Without LayerNorm, and from the published start, the early layers stay overloaded. With nothing between the two linear layers of the FFN the last layer nears collapse. It does not with an activation, nor with one scaled layer. All four networks without LayerNorm have a higher perplexity here.
# - Without retraining, every change of the temperature by hand, in either direction, raises the perplexity. That says nothing yet about steering the entropy during training, which the next notebook does.
#
# One seed, 400 steps, under a million parameters: enough to see the effect, but not to rank networks. `benchmarks/results` has runs with several seeds.

# %% [markdown]
# **Next:** [2. Entropy regularization](2_entropy_regularization.ipynb) trains with a penalty on exactly this number. At larger size: `python -m benchmarks.paper figure5` and the other figures in [docs/paper.md](../docs/paper.md).
