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
# # Knots for counts
#
# For targets that are no real numbers, knots are chosen by the evidence lower bound of a stochastic variational
# Gaussian process. The model that comes out predicts, and exports to BoTorch's to be trained further.

# %%
# %matplotlib inline
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles import plots
from gp_ensembles.likelihoods import LogPoissonLikelihood
from gp_ensembles.sparse import select_variational_knots

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(2)
X = 10.0 * torch.rand(120, 1, generator=generator, dtype=torch.float64)
rate = (1.0 + (0.5 * X).sin() + 0.6 * (2.4 * X).sin() * torch.sigmoid(2.0 * (X - 5.0))).exp().squeeze(-1)
counts = torch.poisson(rate, generator=generator)
found = select_variational_knots(X, counts, ScaleKernel(RBFKernel()), LogPoissonLikelihood(), generator=generator)
print(f"{len(found.knots)} knots, evidence lower bound {found.history[-1].objective:.2f}: {found.stop_reason}")

# %%
grid = torch.linspace(0.0, 10.0, 401, dtype=torch.float64).unsqueeze(-1)
with torch.no_grad():
    log_rate = found.model.posterior(grid.unsqueeze(-2))  # a batch of single points
    mean, variance = log_rate.mean.flatten(), log_rate.variance.flatten()
half = 1.645 * variance.sqrt()
curve = plots.KnotFit(found.knots, (mean + variance / 2).exp(), (mean - half).exp(), (mean + half).exp())
plots.plot_knots(grid, curve, seen=(X, counts), names=("x", "count"), title="the rate: mean and 90 % band")

# %% [markdown]
# `select_laplace_knots` does the same with Laplace's approximation.
