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
# # A dead sensor and an outlier
#
# One target is a thousand times too large and one input gets stuck: the model does not learn the outlier, and its
# health report says that inputs are out of range. For comparison, an ensemble that trusts every target.

# %%
# %matplotlib inline
from dataclasses import replace

import torch

import gp_ensembles as gpe
from gp_ensembles.plots.canvas import ALARM, INK, SERIES, label, new_figure
from gp_ensembles.streaming.health import HealthLimits, health

generator = torch.Generator().manual_seed(0)
X = torch.rand(500, 2, generator=generator, dtype=torch.float64)
truth = (6 * X[:, 0]).sin() + X[:, 1]
y = truth + 0.1 * torch.randn(500, generator=generator, dtype=torch.float64)
# a misplaced decimal point
y[300] = 1000.0
# the second sensor failed: it reads 8 from then on
X[400:, 1] = 8.0

base = replace(
    gpe.oebe, bases=(gpe.bases.LinearBasis(), gpe.bases.FourierBasis(starts=(0.7,)))
)
errors = {}
for name, threshold in {
    "every target is taken at its word": None,
    "outliers are weighed down": 8.0,
}.items():
    model = gpe.OnlineModel(
        gpe.StreamConfig(replace(base, outlier_threshold=threshold), warmup=150),
        ["dial", "gauge"],
    )
    predictions = model.observe(X, y)
    errors[name] = (predictions.mean - truth[150:]).abs()
for finding in health(model, HealthLimits(inputs_moved=0.01)):
    if not finding.ok:
        print(f"{finding.name}: {finding.value:.3f}, limit {finding.limit:.2f}")
        print(f"    {finding.meaning}")

# %%
figure, (axis,) = new_figure(1, 1, 7.5, 3.8)
for color, (name, error) in zip((SERIES[1], SERIES[0]), errors.items(), strict=True):
    axis.plot(
        range(150, 500),
        error.clamp_min(1e-3),
        ".",
        markersize=4,
        color=color,
        label=name,
    )
axis.axvline(300, color=ALARM, linestyle="--", linewidth=1, label="outlier")
axis.axvline(400, color=INK, linestyle=":", linewidth=1.2, label="the gauge dies")
label(axis, "distance of the prediction from the truth", "row", "distance")
axis.set_yscale("log")
figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
figure
