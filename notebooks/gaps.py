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
# # Gaps in targets and inputs
#
# Missing values are NaN, in targets and inputs alike: rows without a target are predicted but not learned, and where
# an input is missing the band widens. A missing input is imputed by a prediction from its own past.

# %%
# %matplotlib inline
from dataclasses import replace

import torch

import gp_ensembles as gpe
from gp_ensembles.plots.canvas import ALARM, BAND, INK, MEAN, label, new_figure

rows = torch.arange(420, dtype=torch.float64)
generator = torch.Generator().manual_seed(0)
X = torch.stack([(rows / 15).sin(), (rows / 4).cos()], dim=1)
y = 20 + 3 * X[:, 0] + X[:, 1] + 0.2 * torch.randn(420, generator=generator).double()
# an input sensor is offline
X[300:330, 0] = torch.nan
# the target was not measured
y[360:385] = torch.nan

spec = replace(gpe.oebe, bases=(gpe.bases.LinearBasis(),))
model = gpe.OnlineModel(gpe.StreamConfig(spec, warmup=150), ["temperature", "load"])
predictions = model.observe(X, y)
lower, upper = predictions.interval(0.9)
for column in model.columns:
    print(f"{column.name}: {column.num_imputed} values imputed")

# %%
figure, (axis,) = new_figure(1, 1, 7.5, 3.8)
shown, tail = rows[270:], slice(120, None)
axis.fill_between(
    shown,
    lower[tail],
    upper[tail],
    color=BAND,
    alpha=0.7,
    linewidth=0,
    label="90 % interval",
)
axis.plot(shown, predictions.mean[tail], color=MEAN, label="mean")
axis.plot(shown, y[270:], ".", color=INK, markersize=4, label="target")
axis.axvspan(
    300, 329, color=ALARM, alpha=0.12, linewidth=0, label="temperature is missing"
)
axis.axvspan(360, 384, color=INK, alpha=0.10, linewidth=0, label="target is missing")
label(axis, "rows with gaps are predicted all the same", "row", "y")
figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
figure
