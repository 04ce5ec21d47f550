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
# # How many knots?
#
# A Gaussian process of N rows costs O(N³), or O(NK²) with K knots (inducing points). The data determine how many are
# enough: knots are added in blocks where they raise a lower bound of the log evidence most, until a block is not worth
# its cost. The result is a GPyTorch and BoTorch model.

# %%
# %matplotlib inline
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles import data
from gp_ensembles.papers.sparse import GreedyBlocks, select_knots
from gp_ensembles.plots.canvas import ALARM, SERIES, label, new_figure
from gp_ensembles.streaming.columns import Standardizer

torch.set_num_threads(1)

# %% [markdown]
# Two interlocked bananas (the data come with the package `river`); the label is treated as a number. For your own CSV
# file, `data.read_csv("DATA.csv", "y")` gives the same kind of table; bring its columns to a common scale.

# %%
table = data.load("bananas")
train = torch.randperm(len(table.y), generator=torch.Generator().manual_seed(2))[
    :200
]
X, labels = Standardizer.fit(table.X[train], table.y[train]).transform(
    table.X[train], table.y[train]
)

# stop when a block gains less than two nats
strategy = GreedyBlocks(max_knots=80, tolerance=2.0)
kernel = ScaleKernel(RBFKernel(ard_num_dims=2))
found = select_knots(
    X, labels, kernel, strategy=strategy, generator=torch.Generator().manual_seed(0)
)
print(f"{len(found.knots)} knots: {found.stop_reason}")
for step in found.history:
    bounds = f"{step.objective:8.1f} to {step.upper_bound:8.1f} nats"
    print(f"{step.action:8} {step.num_knots:4} knots  {bounds}")

# %% [markdown]
# The dashed line is the upper bound of the log evidence with the hyperparameters of that step. These change from step
# to step, so the bound rises and falls, and only its last value is about the final model. The uncertainty at a
# step is the gap between the two lines, which shrinks from about 100 nats to 60.

# %%
figure, (axis,) = new_figure(1, 1, 9.0, 4.2)
knots = [step.num_knots for step in found.history]
axis.plot(knots, [step.objective for step in found.history], "o-", color=SERIES[0])
axis.plot(knots, [step.upper_bound for step in found.history], "--", color=SERIES[0])
label(axis, "objective and upper bound", "knots", "nats")
figure

# %%
sides = torch.linspace(-3.0, 3.2, 40, dtype=torch.float64)
plane = torch.cartesian_prod(sides, sides)
with torch.no_grad():
    # a batch of single points
    mean = found.model.posterior(plane.unsqueeze(-2)).mean.flatten()
figure, (axis,) = new_figure(1, 1, 6.4, 4.8)
surface = axis.tripcolor(*plane.T, mean, shading="gouraud", cmap="cividis")
figure.colorbar(surface)
axis.plot(*X.T, "o", color="white", markersize=3, label="rows")
axis.plot(*found.knots.T, "x", color=ALARM, markersize=7, label="knots")
axis.legend(facecolor="lightgray", framealpha=1.0)
label(axis, "mean of the label", "x1", "x2")
figure

# %% [markdown]
# ## The default
#
# Without a strategy all rows become knots where that is affordable: up to a few thousand rows the exact process costs
# no more and fits better. `predict` gives distributions of targets.

# %%
exact = select_knots(X, labels, generator=torch.Generator().manual_seed(0))
print(type(exact.model).__name__, exact.stop_reason)
print(
    "95 % quantiles:",
    [round(value, 2) for value in exact.predict(X[:3]).quantile(0.95).tolist()],
)

# %% [markdown]
# To compare the paper's models with the default on five splits: `python -m studies knots boston --data FOLDER`.
