# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Ordered levels
#
# Stars from one to five have an order but no distances: the ensemble says a probability for each, before it sees the
# one that came. Neighbors of the right level get what is left.

# %%
# %matplotlib inline
from dataclasses import replace

import torch

import gp_ensembles as gpe
from gp_ensembles.ensembles.targets import LevelTarget
from gp_ensembles.plots.canvas import INK, label, new_figure

generator = torch.Generator().manual_seed(0)
X = torch.rand(500, 1, generator=generator, dtype=torch.float64)
taste = 2 * (5 * X[:, 0]).sin() + 0.5 * torch.randn(500, generator=generator, dtype=torch.float64)
stars = torch.bucketize(taste, torch.tensor([-1.5, -0.3, 0.5, 1.4], dtype=torch.float64)).double()

spec = replace(gpe.auto_for(LevelTarget(5)), bases=(gpe.bases.FourierBasis(starts=(0.7,)),))
model = gpe.OnlineModel(gpe.StreamConfig(spec, warmup=150), ["sweetness"])
predictions = model.observe(X, stars)
print(f"{predictions.log_prob.mean():.2f} nats a row; log 1/5 = -1.61")
grid = torch.linspace(0, 1, 101, dtype=torch.float64).unsqueeze(-1)
probabilities = model.predict(grid).class_probabilities

# %%
figure, (axis,) = new_figure(1, 1, 7.0, 4.0)
shade = axis.imshow(
    probabilities.T.numpy(), origin="lower", aspect="auto", extent=(0, 1, 0.5, 5.5), cmap="Blues", vmin=0, vmax=1
)
jitter = 0.3 * torch.rand(500, generator=generator) - 0.15
axis.plot(X, stars + 1 + jitter, ".", color=INK, markersize=2.5, label="ratings, moved a little apart")
label(axis, "what is said of each rating after 500 of them", "sweetness", "stars")
axis.set_yticks(range(1, 6))
axis.grid(False)
figure.colorbar(shade, ax=axis, label="probability")
figure.legend(loc="outside lower center", frameon=False, fontsize=9, markerscale=3)
figure
