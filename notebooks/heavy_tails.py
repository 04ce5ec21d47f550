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
# # Heavy tails and changing volatility
#
# On synthetic daily returns that resemble those of a stock index, the band adapts to calm and volatile periods, since
# past errors predict the size of the next one. Fixed normal noise would be too wide in calm periods and too narrow in
# volatile ones.

# %%
# %matplotlib inline
from dataclasses import replace

import numpy as np
import torch

import gp_ensembles as gpe
from gp_ensembles.plots.canvas import ALARM, BAND, INK, label, new_figure

rng = np.random.default_rng(3)
returns, variance = np.zeros(1500), 1.0
# a GARCH process with Student-t shocks, in percent
for day in range(1, 1500):
    variance = 0.02 + 0.12 * returns[day - 1] ** 2 + 0.87 * variance
    returns[day] = np.sqrt(variance) * rng.standard_t(6) / np.sqrt(1.5)
y = torch.from_numpy(returns)
X = torch.stack([y.roll(1), y.roll(2)], dim=1)[2:]
y = y[2:]

plain = replace(gpe.oebe, bases=(gpe.bases.LinearBasis(),))
config = gpe.StreamConfig(plain, warmup=300, recalibrate=False, coverages=())
fixed = gpe.OnlineModel(config).observe(X, y)
informed = replace(plain, innovations=gpe.light.innovations)
moving_config = gpe.StreamConfig(
    informed, warmup=300, recalibrate=False, coverages=()
)
moving = gpe.OnlineModel(moving_config).observe(X, y)
print(
    f"fixed noise {fixed.log_prob.mean():.3f},",
    f"what past errors say {moving.log_prob.mean():.3f} nats per day",
)

# %%
lower, upper = moving.distribution.quantile(
    torch.tensor([[0.05], [0.95]], dtype=torch.float64)
)
low, high = fixed.distribution.quantile(
    torch.tensor([[0.05], [0.95]], dtype=torch.float64)
)
figure, (axis,) = new_figure(1, 1, 7.5, 3.8)
days = range(302, 1500)
axis.fill_between(
    days,
    lower,
    upper,
    color=BAND,
    alpha=0.8,
    linewidth=0,
    label="90 % band from past errors",
)
axis.plot(days, y[300:], ".", markersize=2, color=INK, label="return")
axis.plot(days, low, color=ALARM, linewidth=1, label="90 % band of fixed noise")
axis.plot(days, high, color=ALARM, linewidth=1)
label(axis, "daily returns", "day", "return, %")
figure.legend(
    loc="outside lower center", ncols=3, frameon=False, fontsize=9, markerscale=3
)
figure
