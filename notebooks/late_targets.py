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
# # Targets that come late
#
# Rows are predicted as they come and their targets follow eight rows later, in any order: each is scored by what was
# said of it, and the longer the model waits for news, the less it is sure.

# %%
# %matplotlib inline
from dataclasses import replace

import torch

import gp_ensembles as gpe
from gp_ensembles.plots.canvas import SERIES, new_figure
from gp_ensembles.streaming.late import LateTargets

generator = torch.Generator().manual_seed(0)
X = torch.rand(260, 2, generator=generator, dtype=torch.float64)
level = torch.randn(260, generator=generator, dtype=torch.float64).cumsum(0)
y = 0.03 * level + 2 * X[:, 0] + 0.1 * torch.randn(260, generator=generator, dtype=torch.float64)

spec = replace(gpe.doebe, bases=(gpe.bases.LinearBasis(),), random_walk_variances=(1e-3,))
delays, means, deviations = (0, 2, 8), {}, {}
for delay in delays:
    model = gpe.OnlineModel(gpe.StreamConfig(spec, warmup=160)).fit(X[:160], y[:160])
    late, answers = LateTargets(model), []
    for row in range(160, 260):
        answers.append(late.predict(row, X[row]))
        if row - delay >= 160:
            late.observe(row - delay, float(y[row - delay]))
    means[delay] = torch.stack([answer.mean.squeeze() for answer in answers])
    deviations[delay] = torch.stack([answer.stddev.squeeze() for answer in answers])

# %%
figure, axes = new_figure(1, 2, 8.0, 3.6)
errors = [(means[delay] - y[160:]).square().mean().sqrt().item() for delay in delays]
widths = [deviations[delay].median().item() for delay in delays]
for axis, title, heights in zip(
    axes, ("root mean squared error", "predicted deviation, median"), (errors, widths), strict=True
):
    axis.bar(range(3), heights, color=SERIES[:3])
    axis.set_xticks(range(3), ["at once", "2 rows late", "8 rows late"])
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_ylabel("in units of the target", fontsize=9)
    axis.set_ylim(0, 1.1 * max(errors + widths))
figure
