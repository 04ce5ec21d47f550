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
# # After the knots: counts, a stream, BoTorch
#
# A Gaussian process with chosen knots is a model to go on with. Here knots are chosen for counts, fitted models become
# the experts of an online ensemble, and one proposes the next experiments. [How knots are
# chosen](knot_selection.ipynb) is a notebook of its own.

# %%
# %matplotlib inline
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.optim import optimize_acqf
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from gp_ensembles import plots
from gp_ensembles.likelihoods import LogPoissonLikelihood
from gp_ensembles.meta_learners import FixedShare
from gp_ensembles.sparse import GreedyBlocks, select_knots, select_variational_knots, start_online

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(2)

# %% [markdown]
# ## Counts
#
# For other targets knots are chosen by the evidence lower bound of a stochastic variational Gaussian process; the
# model that comes out predicts, and exports to BoTorch's to be trained further. `select_laplace_knots` does the same
# with Laplace's approximation.

# %%
X = 10.0 * torch.rand(120, 1, generator=generator, dtype=torch.float64)
rate = (1.0 + (0.5 * X).sin() + 0.6 * (2.4 * X).sin() * torch.sigmoid(2.0 * (X - 5.0))).exp().squeeze(-1)
counts = torch.poisson(rate, generator=generator)
counted = select_variational_knots(X, counts, ScaleKernel(RBFKernel()), LogPoissonLikelihood(), generator=generator)
print(f"{len(counted.knots)} knots, ELBO {counted.history[-1].objective:.2f}: {counted.stop_reason}")
grid = torch.linspace(0.0, 10.0, 401, dtype=torch.float64).unsqueeze(-1)
with torch.no_grad():
    log_rate = counted.model.posterior(grid.unsqueeze(-2))
    mean, half = log_rate.mean.flatten(), 1.645 * log_rate.variance.sqrt().flatten()
curve = plots.KnotFit(counted.knots, mean.exp(), (mean - half).exp(), (mean + half).exp())
plots.plot_knots(grid, curve, seen=(X, counts), names=("x", "count"), title="the rate: median and 90 % band")

# %% [markdown]
# ## On with a stream
#
# Fitted models go on as the experts of an online ensemble, at a constant price per row: those with knots as a
# regression on the knots' features, exact ones as a window of the last rows. Here two kernels start from the first
# 100 rows of a made-up stream, and an exact process.

# %%
X = torch.rand(400, 2, generator=generator, dtype=torch.float64)
y = torch.sin(8.0 * X[:, 0]) * X[:, 1] + 0.1 * torch.randn(400, generator=generator, dtype=torch.float64)
models = [
    select_knots(X[:100], y[:100], start_kernel, strategy=GreedyBlocks(), generator=generator).model
    for start_kernel in (ScaleKernel(RBFKernel()), ScaleKernel(MaternKernel()))
]
models.append(select_knots(X[:100], y[:100], generator=generator).model)
online = start_online(models, FixedShare(0.01), names=["RBF", "Matern", "exact"])
predictions = online.observe(X[100:], y[100:])
print(f"mean log density {predictions.log_prob.mean():.3f}; the best possible is about 0.884")
plots.plot_weights(predictions.log_weights, online.names, first_row=100)

# %% [markdown]
# What the knots leave out of the prior variance is noise of its own for each row: far from all of them predictions
# are the prior's, and rows there teach the knots little.

# %%
places = torch.tensor([[0.5, 0.5], [2.0, 2.0]], dtype=torch.float64)
for name, deviations in zip(online.names, online.predict(places).component_variance.sqrt(), strict=True):
    inside, outside = deviations.tolist()
    print(f"{name:6} standard deviation: {inside:.2f} among the rows, {outside:.2f} far from them")

# %% [markdown]
# ## In BoTorch
#
# A `SparseGP`, and an `ExactGP`, has a `posterior` with gradients, so acquisition functions take it as they take a
# `SingleTaskGP`. After some hundred noisy evaluations it costs a fraction; new rows go in without moving the knots.


# %%
def experiment(X):
    noise = 0.1 * torch.randn(len(X), generator=generator, dtype=torch.float64)
    return torch.exp(-8.0 * (X - 0.7).square().sum(-1)) + 0.3 * torch.sin(9.0 * X[:, 0]) + noise


X = torch.rand(120, 2, generator=generator, dtype=torch.float64)
model = select_knots(X, experiment(X), ScaleKernel(MaternKernel()), strategy=GreedyBlocks(), generator=generator).model
with torch.no_grad():
    best = model.posterior(X.unsqueeze(-2)).mean.max()  # of the function, not of its noisy values
bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
acquisition = qLogExpectedImprovement(model, best_f=best)
batch, value = optimize_acqf(acquisition, bounds, q=2, num_restarts=4, raw_samples=128)
model = model.condition_on_observations(batch, experiment(batch).unsqueeze(-1))
batch, model.num_knots, len(model.train_targets)

# %% [markdown]
# `KnotAllocator(greedy_variance_knots)` is an `InducingPointAllocator` for a variational BoTorch model of your own.
