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
# # Thompson sampling
#
# Functions drawn from the posterior agree where there are data and differ where there are none: the maximum of each is
# the next point to evaluate. With several kernels, a draw first picks a kernel by its weight, then a function from
# that process.

# %%
# %matplotlib inline
import torch
from botorch.sampling.pathwise import draw_matheron_paths

from gp_ensembles.bo import ExactEnsembleModel
from gp_ensembles.plots.canvas import ALARM, BAND, INK, SERIES, label, new_figure

torch.manual_seed(2)
X = torch.tensor([[0.05], [0.2], [0.35], [0.5], [0.58], [0.95]], dtype=torch.float64)
Y = (9 * X).sin() + X
model = ExactEnsembleModel(X, Y).fit()
grid = torch.linspace(0, 1, 201, dtype=torch.float64).unsqueeze(-1)
paths = draw_matheron_paths(model, torch.Size([8]))
with torch.no_grad():
    # shape (8, 201)
    values = paths(grid)
    posterior = model.posterior(grid.unsqueeze(-2))
mean, half = posterior.mean.flatten(), 1.645 * posterior.variance.sqrt().flatten()

# %%
figure, (axis,) = new_figure(1, 1, 7.0, 4.0)
x = grid.flatten()
axis.fill_between(
    x,
    mean - half,
    mean + half,
    color=BAND,
    alpha=0.5,
    linewidth=0,
    label="mean and 1.645 standard deviations",
)
for number, path in enumerate(values):
    axis.plot(
        x,
        path,
        color=SERIES[0],
        linewidth=0.8,
        alpha=0.8,
        label=None if number else "draws",
    )
best = values.argmax(-1)
axis.plot(
    x[best],
    values.max(-1).values,
    "v",
    color=ALARM,
    markersize=7,
    label="their maxima",
)
axis.plot(X, Y, "o", color=INK, markersize=6, label="data")
label(axis, "eight functions, eight proposals", "x", "y")
figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
figure
