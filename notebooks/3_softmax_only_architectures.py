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
# # 3. Softmax-only: four steps, live
#
# **Question.** Can we turn a trained network with LayerNorm and GELU into a softmax-only one? Which steps are exact, and how much do the others lose?
#
# **The number.** 4.0 times: so many more bytes has the network with both, in private, at the size of GPT-2.
#
# **What you need.** Beside your own PyTorch run `pip install '.[all]'` in a clone of this repository, and `pip install jupyterlab`. Start Jupyter from that environment. The networks learn the Python standard library of your interpreter. Everything runs on one CPU core in a few minutes.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np
import torch

import aero

plt.rcParams.update(aero.analysis.FIGURE_STYLE)

# %% [markdown]
# ## A trained network
#
# A small GPT-2 that predicts the next byte of Python source. Its label, `SM+LN+G`, names its nonlinearities: softmax, LayerNorm, GELU. `aero.convert` takes a `GPT2LMHeadModel` or a Pythia just as well.

# %%
recipe = aero.train.load_recipe("demo", config="bytes.yaml")
(start,) = aero.train.plan_runs(recipe, ["SM+LN+G"], seeds=[0], output="../runs/notebooks/bytes")
aero.train.train_runs([start], cache_dir="../runs/corpora", say=lambda message: None)
teacher = start.folder.path / "model"
baseline = aero.AeroForCausalLM.from_pretrained(teacher)

data = aero.train.prepare_data(recipe.data, cache_dir="../runs/corpora", context_length=128)
windows = torch.from_numpy(data.validation.astype(np.int64)).unfold(0, 128, 128)
tokens = windows[:: len(windows) // 64][:64]  # from all of the held-out text


def perplexity(model):
    """Per byte, on 64 windows of held-out text."""
    with torch.no_grad():
        return model.eval()(tokens, labels=tokens).lm_loss.exp().item()


def logits(model):
    """Returns those of the first of these windows, [4, 128, 257]."""
    with torch.no_grad():
        return model.eval()(tokens[:4]).logits


# %%
print(f"perplexity {perplexity(baseline):.2f} per byte")

# %% [markdown]
# ## The plan
#
# `dry_run` changes nothing. It lists each step, whether the step is exact, and the cost that is left after it.

# %%
print(aero.convert(baseline, "EReg(SM(t)+ScFuFFN_i1)", dry_run=True))

# %% [markdown]
# ## Step by step, without any retraining
#
# 1. **Activation**: GELU becomes ReLU, or nothing.
# 2. **LayerNorm** goes. Its gains fold into the next weights, and its statistics are lost.
# 3. **FFN**: two linear layers with nothing between equal one layer, so they are *fused*, exactly. The deepest FFNs are *pruned*.
# 4. **Attention** gets temperatures and thresholds, both neutral at first, exactly.

# %%
steps = ["SM+LN+G", "SM+LN+R", "SM+R", "SM", "SM+ScFFN", "SM+ScFuFFN", "SM+ScFuFFN_i1"]
steps.append("EReg(SM(t)+ScFuFFN_i1)")
network, rows = baseline, []
for label in steps:
    changed = aero.convert(network, label)
    off = (logits(changed) - logits(network)).abs().max().item()
    rows.append((label, perplexity(changed), aero.mpc.simulate(label).comm_bytes / 1e9))
    print(f"{label:22}  logits change by {off:.1e}, perplexity per byte {rows[-1][1]:7.2f}")
    network = changed

labels, perplexities, gigabytes = zip(*rows)
fig, axes = plt.subplots(1, 2, figsize=(8.5, 3.2), sharey=True)
for panel, values, unit in (
    (axes[0], gigabytes, "GB in private, at GPT-2's size"),
    (axes[1], perplexities, "perplexity per byte, cut and not retrained"),
):
    bars = panel.barh(labels, values)
    panel.bar_label(bars, [f" {value:.3g}" for value in values], fontsize="small")
    panel.set_xlabel(unit)
axes[0].invert_yaxis()
axes[1].set_xscale("log")
plt.show()

# %% [markdown]
# Fusing, scales, temperatures and thresholds change no logit by more than rounding. Exchanging GELU for ReLU costs little perplexity and saves most of the bytes. The network cannot lose LayerNorm: without it the perplexity grows tenfold. Pruning the last FFN costs again. These steps need retraining.
#
# ## Retraining
#
# We retrain for half as many steps as the baseline had, in three ways. *Cut* removes everything at once and continues training. *Annealed* lets LayerNorm and GELU fade over the first third of the steps while the baseline's logits teach. The last row does the same but keeps a *foldable* normalization, `FN`, which uses running statistics instead of the token's own. At inference it is a fixed linear map and folds into the next weights, so it costs nothing in private. For a fair comparison the baseline itself trains for as many steps more.

# %%
half = f"training.tokens={recipe.training.tokens // 2}"


def retrained(label, schedule, distill):
    """A run that starts from the baseline."""
    settings = [half, f"annealing.schedule={schedule}"]
    (run,) = aero.train.plan_runs(
        aero.train.load_recipe("demo", config="bytes.yaml", settings=settings),
        [label],
        seeds=[0],
        output="../runs/notebooks/retrained",
        start_from=teacher,
        distill_from=teacher if distill else None,
    )
    aero.train.train_runs([run], cache_dir="../runs/corpora", say=lambda message: None)
    return aero.report.read_run(run.folder.path)


ways = {
    "SM+LN+G, the baseline": aero.report.read_run(start.folder.path),
    "SM+LN+G, going on": retrained("SM+LN+G", "none", distill=False),
    "SM+ScFuFFN, cut": retrained("SM+ScFuFFN", "none", distill=False),
    "SM+ScFuFFN, annealed": retrained("SM+ScFuFFN", "linear", distill=True),
    "SM+FN+ScFuFFN, annealed": retrained("SM+FN+ScFuFFN", "linear", distill=True),
}

# %%
for name, run in ways.items():
    print(f"{name:23}  perplexity per byte {run.evaluation.perplexity:.2f}")

# %%
fig, axes = plt.subplots(figsize=(8.5, 3))
curves = {
    name: [([m.step for m in run.metrics.train], [m.lm_loss for m in run.metrics.train])]
    for name, run in ways.items()
    if run is not ways["SM+LN+G, the baseline"]
}
aero.analysis.plot_loss_curves(curves, title="retraining", axes=axes)
axes.axhline(
    math.log(ways["SM+LN+G, the baseline"].evaluation.perplexity), color="0.5", linestyle=":"
)
axes.legend()
plt.show()

# %% [markdown]
# After a cut the network does not recover in these 200 steps. Annealed and taught, the *same* softmax-only network ends where the LayerNorm baseline was at the start, and better than the same architecture from scratch in [notebook 1](1_attention_entropy.ipynb). That training had 400 steps; here the baseline's 400 come before these 200. The baseline, trained for the same steps, is ahead by one again. With the teacher's help a foldable norm makes little difference. All this is one seed. At the demo's size, over three seeds, the annealed network is better [without the teacher](../docs/how_to/train.md#start-from-a-trained-network).
#
# ## The computation that is left
#
# Two more steps are exact and cost nothing. `fold_norm` multiplies a foldable norm into the next weights. `absorb_ffn` goes further: if every FFN is linear and no norm is left between, each FFN is a fixed matrix on the residual stream and can be moved into the neighbouring attention weights. Then no FFN is computed at all, up to a bound on how ill-conditioned the matrices may be.

# %%
free = aero.AeroForCausalLM.from_pretrained(ways["SM+FN+ScFuFFN, annealed"].folder / "model")
folded = aero.fold_norm(free)
absorbed = aero.absorb_ffn(folded)
print(absorbed)
off = (logits(absorbed.model) - logits(free)).abs().max() / logits(free).abs().max()
print(f"relative to the trained network the logits are off by {off:.1e}")

# %% [markdown]
# The first layer's matrix is nearly singular, so its FFN stays, and the other three are absorbed. The logits stay the same to six digits. The next figure shows the saving of all steps at the size of GPT-2 and 128 tokens:

# %% tags=["gallery=four_steps"]
labels = ["SM+LN+G", "SM+LN+R", "SM+R", "SM", "SM+ScFuFFN"]
gigabytes = [aero.mpc.simulate(label).comm_bytes / 1e9 for label in labels]
gigabytes.append(aero.mpc.simulate("SM+ScFuFFN", absorb_ffn=True).comm_bytes / 1e9)
labels.append("SM+ScFuFFN, absorbed")
fig, axes = plt.subplots(figsize=(8.5, 2.8))
aero.analysis.plot_stepwise_savings(
    labels, gigabytes, unit="GB of one private forward pass (GPT-2, spu-2024)", axes=axes
)
plt.show()

# %% [markdown]
# ## Conclusion
#
# - Fusing, scaling, temperatures, thresholds, folding and absorbing are exact. Removing LayerNorm, GELU or an FFN is not. Without retraining, LayerNorm costs this network the most quality.
# - Here the way of the inexact steps matters most. Annealed under a teacher, softmax-only comes near a baseline that trains on. Cut at once it stays far behind. One seed does not say which of fading and teacher does it.
# - Nearly all of the fourfold saving comes from the activation and LayerNorm. The linear layers that FFN steps remove are cheap in bytes, but they save minutes.
#
# One seed, 200 steps. `aero convert` and `aero train --from --distill-from` do the same on the command line, to GPT-2 and Pythia checkpoints too; at the demo's size the numbers are [here](../benchmarks/results/retraining_amd_epyc_202611.md). **Next:** [4. Private inference: where the gigabytes go](4_private_inference_cost.ipynb).
