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
# # Counts
#
# Hourly visitor numbers are counts, low at night and high at noon: the prediction is a distribution over 0, 1,
# 2, ..., whose spread grows with its mean.

# %%
# %matplotlib inline
from dataclasses import replace

import torch

import gp_ensembles as gpe
from gp_ensembles.ensembles.targets import CountTarget
from gp_ensembles.plots.canvas import BAND, INK, MEAN, label, new_figure

generator = torch.Generator().manual_seed(0)
hours = torch.arange(24 * 20, dtype=torch.float64)
turn = 2 * torch.pi * hours / 24
X = torch.stack([turn.sin(), turn.cos()], dim=1)
y = torch.poisson((1.2 - 1.4 * X[:, 1]).exp(), generator=generator)

spec = replace(
    gpe.auto_for(CountTarget()), bases=(gpe.bases.FourierBasis(starts=(0.7,)),)
)
model = gpe.OnlineModel(gpe.StreamConfig(spec, warmup=120), ["sin", "cos"])
predictions = model.observe(X, y)
lower, middle, upper = (
    predictions.distribution.quantile(level) for level in (0.05, 0.5, 0.95)
)
print(f"{predictions.log_prob.mean():.2f} nats an hour")

# %%
figure, (axis,) = new_figure(1, 1, 7.5, 3.6)
last = hours[-96:]
axis.fill_between(
    last,
    lower[-96:],
    upper[-96:],
    step="mid",
    color=BAND,
    alpha=0.7,
    linewidth=0,
    label="5 to 95 %",
)
axis.step(last, middle[-96:], where="mid", color=MEAN, label="median")
axis.plot(last, y[-96:], "o", color=INK, markersize=3, label="visitors")
label(
    axis,
    "the last four days, each hour predicted before it is counted",
    "hour",
    "visitors an hour",
)
axis.set_xticks(range(384, 481, 12))
figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
figure
