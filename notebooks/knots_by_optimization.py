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
# # Knots by optimization
#
# With few knots, optimizing their positions pays off. One knot at a time is proposed and optimized together with the
# hyperparameters, or all of a given number at once. For comparison, rows that are added greedily and not moved.

# %%
# %matplotlib inline
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles import data, metrics
from gp_ensembles.papers.sparse import (
    GreedyBlocks,
    OneAtATime,
    RandomSubset,
    Simultaneous,
    SparseGP,
    kmeans_knots,
    select_knots,
)
from gp_ensembles.papers.sparse.fitting import fit_sparse
from gp_ensembles.plots.canvas import ALARM, FAINT, INK, draw_band, label, new_figure
from gp_ensembles.streaming.columns import Standardizer

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(2)

# %% [markdown]
# ## One knot
#
# Seven knots are too few for this function. A row is proposed as the eighth, here simply the first one drawn. Then the
# new knot and the hyperparameters are optimized together: the knot moves right, where the fit had missed a peak, and
# less variation is mistaken for noise.

# %%
x = 10.0 * torch.rand(120, generator=generator, dtype=torch.float64).sort().values
# inputs are (N, D)
X = x.unsqueeze(-1)
y = (0.5 * x).sin() + 0.6 * (2.4 * x).sin() * torch.sigmoid(2.0 * (x - 5.0))
y = y + 0.15 * torch.randn(120, generator=generator, dtype=torch.float64)
model = SparseGP(
    X, y, kmeans_knots(X, 7, generator=generator), ScaleKernel(RBFKernel())
)
# fits hyperparameters; the knots stay fixed
fit_sparse(model)

proposed, _ = RandomSubset(1).propose(model, generator=generator)
grown = model.with_knots(torch.cat([model.knots, X[proposed]]))
# a copy
refined = grown.with_knots(grown.knots)
fit_sparse(refined, knots=slice(7, None))
for name, one in {"before": grown, "after": refined}.items():
    place, noise = one.knots[-1].item(), one.likelihood.noise.item()
    print(
        f"{name:6} objective {one.objective().item():6.2f}, "
        f"new knot at {place:.2f}, noise {noise:.4f}"
    )


grid = torch.linspace(0.0, 10.0, 201, dtype=torch.float64).unsqueeze(-1)
with torch.no_grad():
    # a batch of single points
    posterior = refined.posterior(grid.unsqueeze(-2), observation_noise=True)
mean, half = (
    posterior.mean.flatten(),
    1.645 * posterior.variance.sqrt().flatten(),
)
figure, (axis,) = new_figure(1, 1, 9.0, 3.8)
draw_band(axis, grid.flatten(), mean, mean - half, mean + half)
axis.plot(x, y, "o", color=FAINT, markersize=2.5, label="rows")
foot = axis.get_ylim()[0]
places = refined.knots.detach().flatten()
axis.plot(places, foot + 0.0 * places, "^", color=INK, label="knots")
axis.axvline(
    grown.knots[-1].item(), color=ALARM, linestyle=":", label="new knot, proposed"
)
axis.axvline(refined.knots[-1].item(), color=ALARM, label="new knot, moved")
axis.legend(frameon=False, fontsize=8)
label(axis, "after", "x", "y")
figure

# %% [markdown]
# ## Twelve knots, three ways
#
# The rows are two interlocked bananas, with the label treated as a number; scores are those of 5 100 held-out rows.

# %%
table = data.load("bananas")
rows = torch.randperm(len(table.y), generator=generator)
train, test = rows[:200], rows[200:]
plane, labels = Standardizer.fit(table.X[train], table.y[train]).transform(
    table.X, table.y
)
ways = {
    "one at a time": OneAtATime(RandomSubset(), start=8, max_knots=12),
    "simultaneous": Simultaneous(12),
    "greedy rows": GreedyBlocks(max_knots=12, polish_iterations=0),
}
results = {}
for name, way in ways.items():
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2))
    found = select_knots(
        plane[train],
        labels[train],
        kernel,
        strategy=way,
        generator=torch.Generator().manual_seed(0),
    )
    results[name], last = found, found.history[-1]
    with torch.no_grad():
        posterior = found.model.posterior(
            plane[test].unsqueeze(-2), observation_noise=True
        )
    error = metrics.sample_srmse(posterior.mean.flatten(), labels[test])
    print(
        f"{name:16} {last.num_knots} knots  lower bound {last.objective:8.2f}  "
        f"standardized error {error:.3f}"
    )

# %%
sides = torch.linspace(-3.0, 3.2, 40, dtype=torch.float64)
square = torch.cartesian_prod(sides, sides)
chosen = results["simultaneous"]
with torch.no_grad():
    mean = chosen.model.posterior(square.unsqueeze(-2)).mean.flatten()
figure, (axis,) = new_figure(1, 1, 6.4, 4.8)
surface = axis.tripcolor(*square.T, mean, shading="gouraud", cmap="cividis")
figure.colorbar(surface)
axis.plot(*plane[train].T, "o", color="white", markersize=3, label="rows")
axis.plot(*chosen.knots.T, "x", color=ALARM, markersize=7, label="knots")
axis.legend(facecolor="lightgray", framealpha=1.0)
label(axis, "mean of the label", "x1", "x2")
figure

# %% [markdown]
# The paper's algorithm adds one knot at a time (`OneAtATime`, with `RandomSubset` or `BayesianOptimization` as its
# proposal) and stops at the first that does not help; `stop_reason` says why. For knots chosen in blocks, and
# how many of them are needed, see [how many knots](how_many_knots.ipynb).
