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
# # An optimum that moves
#
# A bump goes around in a circle, and a Thompson loop whose experts forget goes after it. The loop does not know that,
# or how fast, the objective moves.

# %%
# %matplotlib inline
import math

import torch

from gp_ensembles.bo import ThompsonLoop, ThompsonSettings
from gp_ensembles.plots.canvas import ALARM, SERIES, label, new_figure


def peak(step):
    turn = 2 * math.pi * step / 80
    return torch.tensor(
        [0.5 + 0.3 * math.cos(turn), 0.5 + 0.3 * math.sin(turn)], dtype=torch.float64
    )


def run(forgetting):
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    settings = ThompsonSettings(
        48,
        smoothnesses=(2.5,),
        forgetting=forgetting,
        refit_every=25,
        raw_samples=64,
        num_restarts=1,
    )
    loop = ThompsonLoop(bounds, settings, generator=torch.Generator().manual_seed(1))

    def objective(X):
        step = loop.Y.shape[0]
        return (-15 * (X - peak(step)).square().sum(-1, keepdim=True)).exp()

    return loop.run(objective, 50)


runs = {"forgets": run((0.97, 0.9)), "does not": run(())}
regret = {name: (1 - Y.flatten()).cumsum(0) for name, (_, Y) in runs.items()}
print({name: f"lost {values[-1]:.1f}" for name, values in regret.items()})

# %%
figure, (left, right) = new_figure(1, 2, 9.0, 4.2)
X, _ = runs["forgets"]
path = torch.stack([peak(step) for step in range(len(X))])
left.plot(*path.T, color=ALARM, label="way of the optimum")
points = left.scatter(
    *X.T, c=range(len(X)), s=16, cmap="viridis", label="where it looked"
)
figure.colorbar(points, ax=left, label="evaluation")
label(left, "the loop that forgets", "x1", "x2")
left.set_aspect("equal")
for color, (name, values) in zip(SERIES, regret.items(), strict=False):
    right.plot(values, color=color, label=name)
label(right, "distance to the optimum's height, summed", "evaluation", "")
figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
figure
