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
# # Many series
#
# Forty meters share one model's hyperparameters, and each has its own weights, scales and intervals. One call learns
# a batch of rows for all of them.

# %%
# %matplotlib inline
import torch

import gp_ensembles as gpe
from gp_ensembles.plots.canvas import BAND, INK, MEAN, label, new_figure

generator = torch.Generator().manual_seed(0)
hours, meters = 260, [f"meter {number}" for number in range(1, 41)]
level = 1000 * torch.rand(40, generator=generator, dtype=torch.float64)
temperature = 15 + 5 * torch.randn(
    hours, 40, 1, generator=generator, dtype=torch.float64
)
load = (
    level
    + 3 * temperature.squeeze(-1)
    + 5 * torch.randn(hours, 40, generator=generator, dtype=torch.float64)
)
# hour after hour
names, X, y = meters * hours, temperature.reshape(-1, 1), load.flatten()

known = 200 * 40
fleet = gpe.Fleet(warmup=100)
fleet.fit(names[:known], X[:known], y[:known])
predictions = fleet.observe(names[known:], X[known:], y[known:])
lower, upper = (end.reshape(60, 40) for end in predictions.interval(0.9))
print(
    f"{predictions.covered.nanmean():.3f} of {len(names) - known} targets",
    "lie in their 90 % intervals",
)

# %%
figure, axes = new_figure(2, 2, 8.5, 4.6)
for number, axis in enumerate(axes):
    rows = range(200, 260)
    axis.fill_between(
        rows,
        lower[:, number],
        upper[:, number],
        color=BAND,
        alpha=0.8,
        linewidth=0,
        label="90 % interval",
    )
    axis.plot(
        rows,
        (lower + upper)[:, number] / 2,
        color=MEAN,
        linewidth=1,
        label="its middle",
    )
    axis.plot(rows, load[200:, number], ".", color=INK, markersize=4, label="target")
    label(axis, meters[number], "hour" if number > 1 else "", "load, kW")
figure.legend(
    *axes[0].get_legend_handles_labels(),
    loc="outside lower center",
    ncols=3,
    frameon=False,
    fontsize=9,
)
figure
