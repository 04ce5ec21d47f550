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
# # A moving optimum
#
# A bump moves in a circle, and Thompson sampling with time as an additional input follows it. The speed of the
# objective is unknown: the length scale of time is learned with the others.

# %%
# %matplotlib inline
import math

import torch

from gp_ensembles.bo import ExactEnsembleModel, thompson
from gp_ensembles.plots.canvas import ALARM, SERIES, label, new_figure


def peak(step):
    turn = 2 * math.pi * step / 80
    return torch.tensor(
        [0.5 + 0.3 * math.cos(turn), 0.5 + 0.3 * math.sin(turn)], dtype=torch.float64
    )


def height(X, step):
    return (-15 * (X - peak(step)).square().sum(-1, keepdim=True)).exp()


def run(sees_time):
    torch.manual_seed(1)
    X = torch.rand(6, 2, dtype=torch.float64)
    Y = torch.cat([height(x.unsqueeze(0), step) for step, x in enumerate(X)])
    start = None
    for step in range(len(X), 56):
        times = torch.arange(step + 1, dtype=torch.float64).unsqueeze(-1)
        seen = torch.cat([X, times[:-1]], -1) if sees_time else X
        bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        if sees_time:
            bounds = torch.cat([bounds, times[-1:].expand(2, 1)], -1)
        model = ExactEnsembleModel(seen, Y, kernels=(2.5,))
        if step % 5 == 1:
            start = model.fit(start).hyperparameters
        model.with_hyperparameters_(start)
        x = thompson(model, bounds, raw_samples=64, num_restarts=1)[:, :2]
        X, Y = torch.cat([X, x]), torch.cat([Y, height(x, step)])
    return X, Y


runs = {"sees the time": run(True), "does not": run(False)}
regret = {name: (1 - Y.flatten()).cumsum(0) for name, (_, Y) in runs.items()}
print({name: f"lost {values[-1]:.1f}" for name, values in regret.items()})

# %%
figure, (left, right) = new_figure(1, 2, 9.0, 4.2)
X, _ = runs["sees the time"]
path = torch.stack([peak(step) for step in range(len(X))])
left.plot(*path.T, color=ALARM, label="way of the optimum")
points = left.scatter(
    *X.T, c=range(len(X)), s=16, cmap="viridis", label="where it looked"
)
figure.colorbar(points, ax=left, label="evaluation")
label(left, "seeing the time", "x1", "x2")
left.set_aspect("equal")
for color, (name, values) in zip(SERIES, regret.items(), strict=False):
    right.plot(values, color=color, label=name)
label(right, "distance to the optimum's height, summed", "evaluation", "")
figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
figure
