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
# # Irregular time
#
# Where rows are not one step apart, pass the time since the previous row; after a long gap the band is then as
# wide as the random walk of the weights implies. The second model treats all rows as one step apart and is
# overconfident after the gaps.

# %%
# %matplotlib inline
from dataclasses import replace

import torch

import gp_ensembles as gpe
from gp_ensembles.plots.canvas import ALARM, SERIES, label, new_figure

generator = torch.Generator().manual_seed(4)
steps = torch.ones(300, dtype=torch.float64)
# no rows for 150 hours, now and then
steps[torch.arange(170, 300, 20)] = 150.0
time = steps.cumsum(0)
walk = torch.randn(int(time[-1]) + 1, generator=generator).double().cumsum(0)
X = torch.rand(300, 1, generator=generator, dtype=torch.float64)
y = (
    0.02 * walk[time.long()]
    + 2 * X[:, 0]
    + 0.1 * torch.randn(300, generator=generator, dtype=torch.float64)
)

spec = replace(
    gpe.doebe, bases=(gpe.bases.LinearBasis(),), random_walk_variances=(1e-3,)
)
widths, scores = {}, {}
for name, given in {"time is given": steps, "one step each": None}.items():
    predictions = gpe.OnlineModel(
        gpe.StreamConfig(spec, warmup=150, recalibrate=False, coverages=())
    ).observe(X, y, given)
    lower, upper = predictions.distribution.quantile(
        torch.tensor([[0.05], [0.95]], dtype=torch.float64)
    )
    widths[name] = upper - lower
    behind = steps[150:] > 1
    scores[name] = predictions.log_prob[behind].mean().item()
print(
    "mean log score of rows behind a gap:",
    {name: round(score, 2) for name, score in scores.items()},
)

# %%
figure, (axis,) = new_figure(1, 1, 7.5, 3.6)
for color, (name, width) in zip(SERIES, widths.items(), strict=False):
    axis.plot(
        range(150, 300),
        width,
        ".-",
        markersize=4,
        linewidth=1,
        color=color,
        label=name,
    )
for row in range(170, 300, 20):
    axis.axvline(row, color=ALARM, linewidth=0.8, linestyle="--")
axis.set_ylim(0, None)
label(
    axis,
    "width of the 90 % band: wide behind a silence of 150 hours (dashes)",
    "row",
    "width",
)
figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
figure
