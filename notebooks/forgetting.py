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
# # Static weights, random walk, sliding window
#
# Three ways to remember the same rows: a static expert averages over the whole past, weights that follow a random walk
# track the rotating function, and an exact process of the last sixty rows or more tracks it with a delay. The function
# makes one full turn in 800 rows.

# %%
# %matplotlib inline
from dataclasses import replace

import torch

import gp_ensembles as gpe
from gp_ensembles.ensembles.extra_experts import WindowGP
from gp_ensembles.plots.canvas import SERIES, label, new_figure

generator = torch.Generator().manual_seed(0)
X = torch.randn(800, 2, generator=generator, dtype=torch.float64)
angle = 2 * torch.pi * torch.arange(800, dtype=torch.float64) / 800
y = (
    angle.cos() * X[:, 0]
    + angle.sin() * X[:, 1]
    + 0.1 * torch.randn(800, generator=generator, dtype=torch.float64)
)

linear = replace(
    gpe.oebe,
    bases=(gpe.bases.LinearBasis(),),
    fit_settings=gpe.light.fit_settings,
    rule=gpe.light.rule,
)
window = WindowGP(num_rows=60, nu=2.5)
specs = {
    "static": linear,
    "walking": replace(linear, static=False, random_walk_variances=(1e-3,)),
    "static and window": replace(linear, extra_experts=(window,)),
    "all three": replace(
        linear, random_walk_variances=(1e-3,), extra_experts=(window,)
    ),
}
errors = {}
for name, spec in specs.items():
    predictions = gpe.OnlineModel(gpe.StreamConfig(spec, warmup=100)).observe(X, y)
    errors[name] = (predictions.mean - y[100:]).abs()
    print(f"{name}: {predictions.log_prob.mean():.2f} nats per row")

# %%
figure, (axis,) = new_figure(1, 1, 7.5, 3.8)
for color, (name, error) in zip(
    (SERIES[1], SERIES[0], SERIES[4], SERIES[2]), errors.items(), strict=True
):
    axis.plot(
        range(139, 800), error.unfold(0, 40, 1).mean(-1), color=color, label=name
    )
label(
    axis,
    "absolute error of the prediction, mean of the last 40 rows",
    "row",
    "absolute error",
)
figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
figure
