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
# # Intervals with guaranteed coverage
#
# The noise doubles halfway, and still nine of ten targets lie in the 90 % interval: its ends are adjusted by how often
# targets missed them. The mixture's own quantiles are shown for comparison.

# %%
# %matplotlib inline
from dataclasses import replace

import torch

import gp_ensembles as gpe
from gp_ensembles.plots.canvas import ALARM, INK, SERIES, label, new_figure

generator = torch.Generator().manual_seed(0)
X = torch.rand(1200, 2, generator=generator, dtype=torch.float64)
deviation = torch.where(torch.arange(1200) < 600, 0.2, 0.4).double()
y = (
    (6 * X[:, 0]).sin()
    + X[:, 1]
    + deviation * torch.randn(1200, generator=generator, dtype=torch.float64)
)

spec = replace(gpe.oebe, bases=(gpe.bases.FourierBasis(starts=(0.7,)),))
inside = {}
for name, coverages, recalibrate in (
    ("the mixture's quantiles", (), False),
    ("adaptive intervals", (0.9,), True),
):
    config = gpe.StreamConfig(
        spec, warmup=200, coverages=coverages, recalibrate=recalibrate
    )
    predictions = gpe.OnlineModel(config).observe(X, y)
    lower, upper = predictions.interval(0.9)
    inside[name] = ((y[200:] >= lower) & (y[200:] <= upper)).double()
    print(f"{name}: {inside[name].mean():.3f} of the targets inside")

# %%
figure, (axis,) = new_figure(1, 1, 7.5, 3.8)
for color, (name, hits) in zip(SERIES[1::-1], inside.items(), strict=True):
    axis.plot(
        range(300, 1201), hits.unfold(0, 100, 1).mean(-1), color=color, label=name
    )
axis.axhline(0.9, color=INK, linewidth=1, linestyle=":", label="what is promised")
axis.axvline(600, color=ALARM, linewidth=1, linestyle="--", label="noise doubles")
label(axis, "share of the last 100 targets inside the 90 % interval", "row", "share")
figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
figure
