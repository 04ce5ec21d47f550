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
# # Knots in BoTorch
#
# Where noisy evaluations are many, a process with knots costs a fraction of an exact one. `SparseGP` has a `posterior`
# with gradients, so acquisition functions take it as they take a `SingleTaskGP`; new rows go in without moving the
# knots.

# %%
# %matplotlib inline
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.optim import optimize_acqf
from gpytorch.kernels import MaternKernel, ScaleKernel

from gp_ensembles import plots
from gp_ensembles.plots.canvas import ALARM
from gp_ensembles.sparse import GreedyBlocks, select_knots

torch.set_num_threads(1)
torch.manual_seed(0)  # of the acquisition's draws
generator = torch.Generator().manual_seed(2)


def experiment(X):
    noise = 0.1 * torch.randn(len(X), generator=generator, dtype=torch.float64)
    return torch.exp(-8.0 * (X - 0.7).square().sum(-1)) + 0.3 * torch.sin(9.0 * X[:, 0]) + noise


X = torch.rand(120, 2, generator=generator, dtype=torch.float64)
y = experiment(X)
strategy = GreedyBlocks(max_knots=40, polish_iterations=20)
model = select_knots(X, y, ScaleKernel(MaternKernel()), strategy=strategy, generator=generator).model
print(f"{model.num_knots} knots for {len(X)} rows")

# %% [markdown]
# Two places are proposed, the second as if the first were under way, then both are tried and learned. Both lie on the
# hill where the mean is highest, close to each other.

# %%
with torch.no_grad():
    best = model.posterior(X.unsqueeze(-2)).mean.max()  # of the function, not of its noisy values
bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
acquisition = qLogExpectedImprovement(model, best_f=best)
batch, _ = optimize_acqf(acquisition, bounds, q=2, num_restarts=4, raw_samples=64, sequential=True)
model = model.condition_on_observations(batch, experiment(batch).unsqueeze(-1))
print("proposed:", [[round(value, 2) for value in place] for place in batch.tolist()])
print(f"{model.num_knots} knots for {len(model.train_targets)} rows")

# %%
sides = torch.linspace(0.0, 1.0, 40, dtype=torch.float64)
plane = torch.cartesian_prod(sides, sides)
with torch.no_grad():
    posterior = model.posterior(plane.unsqueeze(-2), observation_noise=True)
    mean, half = posterior.mean.flatten(), 1.645 * posterior.variance.sqrt().flatten()
fit = plots.KnotFit(model.knots, mean, mean - half, mean + half)
figure = plots.plot_knots(plane, fit, seen=(X, y), names=("x1", "x2", "y"), title="red squares: the two proposals")
for axis in figure.axes[:2]:  # the maps; beyond are their color bars
    axis.plot(*batch.T, "s", markersize=9, markerfacecolor="none", markeredgecolor=ALARM, markeredgewidth=1.6)
figure
