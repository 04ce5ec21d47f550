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
# # Recalibration
#
# Errors with a narrow peak and heavy tails do not fit normal densities: recalibration learns their shape from where
# past targets fell. If the bars are level, the predictive distributions are calibrated.

# %%
# %matplotlib inline
from dataclasses import replace

import numpy as np
import torch

import gp_ensembles as gpe
from gp_ensembles.plots.canvas import INK, SERIES, label, new_figure

generator = torch.Generator().manual_seed(0)
X = torch.rand(1500, 2, generator=generator, dtype=torch.float64)
heavy = torch.from_numpy(np.random.default_rng(0).standard_t(2.5, 1500))
y = 5 * (6 * X[:, 0]).sin() + X[:, 1] + heavy

spec = replace(gpe.oebe, bases=(gpe.bases.FourierBasis(starts=(0.7,)),))
model = gpe.OnlineModel(gpe.StreamConfig(spec, warmup=300, recalibrate=True))
predicted = model.observe(X, y).distribution
transforms = {
    "as the experts say it": predicted.base.cdf(y[300:]),
    "recalibrated": predicted.cdf(y[300:]),
}
gain = predicted.log_prob(y[300:]) - predicted.base.log_prob(y[300:])
print(f"recalibration gains {gain.mean():.3f} nats per row")

# %%
figure, axes = new_figure(1, 2, 8.0, 3.6)
axes[1].sharey(axes[0])
for axis, color, (name, values) in zip(
    axes, SERIES[1::-1], transforms.items(), strict=True
):
    axis.hist(
        values[200:],
        bins=20,
        range=(0, 1),
        density=True,
        color=color,
        edgecolor="white",
        linewidth=0.5,
    )
    axis.axhline(1.0, color=INK, linewidth=1, linestyle=":")
    label(
        axis, name, "where the target fell (0: below all, 1: above all)", "density"
    )
figure
