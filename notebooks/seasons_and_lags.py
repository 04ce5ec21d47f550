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
# # Seasons and lags
#
# Past targets can be inputs, too: with the last hour and the same hour of yesterday, a daily cycle that no input
# explains is predicted well. Without them the ensemble can only predict the mean.

# %%
# %matplotlib inline
from dataclasses import replace

import torch

import gp_ensembles as gpe
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.plots.canvas import INK, SERIES, label, new_figure

hours = torch.arange(600, dtype=torch.float64)
generator = torch.Generator().manual_seed(0)
# wind
X = torch.randn(600, 1, generator=generator, dtype=torch.float64)
wave = 5 * (2 * torch.pi * hours / 24).sin() + 2 * (4 * torch.pi * hours / 24).cos()
y = (
    30
    + wave
    + X[:, 0]
    + 0.5 * torch.randn(600, generator=generator, dtype=torch.float64)
)

linear = (gpe.bases.LinearBasis(),)
plain = replace(gpe.light, bases=linear, extra_experts=(), lags=None, innovations=())
specs = {
    "no past targets": plain,
    "the last hour": replace(plain, lags=TargetLags(lags=(1,), bases=linear)),
    "the last hour and yesterday's": replace(
        plain, lags=TargetLags(lags=(1, 24), bases=linear)
    ),
}
predicted = {
    name: gpe.OnlineModel(gpe.StreamConfig(spec, warmup=200)).observe(X, y)
    for name, spec in specs.items()
}
for name, predictions in predicted.items():
    print(f"{name}: {predictions.log_prob.mean():.2f} nats an hour")

# %%
figure, (axis,) = new_figure(1, 1, 7.5, 3.8)
axis.plot(hours[-72:], y[-72:], "o", color=INK, markersize=3, label="target")
for color, (name, predictions) in zip(
    SERIES[1:3] + SERIES[:1], predicted.items(), strict=True
):
    axis.plot(
        hours[-72:], predictions.mean[-72:], color=color, linewidth=1.5, label=name
    )
label(axis, "predictions of the next hour, the last three days", "hour", "load, MW")
axis.set_xticks(range(528, 601, 12))
figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
figure
