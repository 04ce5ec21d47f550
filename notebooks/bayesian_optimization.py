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
# # Bayesian optimization with an ensemble
#
# An `ExactEnsembleModel` can replace a BoTorch `SingleTaskGP`; here it has several kernels, weighted by their
# evidence. This notebook swaps one for the other, optimizes by expected improvement, and looks at the weights.

# %%
# %matplotlib inline
import math

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.test_functions import Branin
from botorch.utils.sampling import draw_sobol_samples
from botorch.utils.transforms import unnormalize
from gpytorch.mlls import ExactMarginalLogLikelihood

from gp_ensembles import plots
from gp_ensembles.bo import ExactEnsembleModel

# the models work on small matrices: two threads are often slower than one
torch.set_num_threads(1)
torch.manual_seed(0)
bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)

# %% [markdown]
# ## One line changes
#
# Branin's function, negated and scaled to the unit square: its maximum is -0.398, at three points. Both models are
# fitted to the same twelve points and evaluated at about two hundred others.

# %%
function = Branin(negate=True)


def branin(places):
    return function(unnormalize(places, function.bounds)).unsqueeze(-1)


X = draw_sobol_samples(bounds, 12, 1, seed=0).squeeze(-2)
Y = branin(X)

process = SingleTaskGP(X, Y)
fit_gpytorch_mll(ExactMarginalLogLikelihood(process.likelihood, process))

kernels = (math.inf, 2.5, 1.5)
ensemble = ExactEnsembleModel(X, Y, kernels=kernels)
# or: ensemble.fit()
fit_gpytorch_mll(ExactMarginalLogLikelihood(ensemble.likelihood, ensemble))

places = draw_sobol_samples(bounds, 200, 1, seed=1).squeeze(-2)
truth = branin(places)
with torch.no_grad():
    for name, model in {
        "SingleTaskGP": process,
        "ExactEnsembleModel": ensemble,
    }.items():
        error = (model.posterior(places).mean - truth).square().mean().sqrt()
        print(f"{name:18} error {error.item():.1f}")
names = ("rbf", "matern 2.5", "matern 1.5")
print(
    {
        name: round(weight, 2)
        for name, weight in zip(
            names, ensemble.log_weights.exp().tolist(), strict=True
        )
    }
)

# %% [markdown]
# ## Expected improvement, averaged over members
#
# The posterior is a mixture. If an acquisition function is an expectation, its value is the weighted mean over the
# experts. With `members=10` the model consists of ten processes of equal weight, where each kernel appears in
# proportion to its weight, and BoTorch averages over them: the mixture is never approximated by a single normal
# distribution. Each step refits the hyperparameters and records the weights.

# %%
weights = []
for _ in range(12):
    model = ExactEnsembleModel(X, Y, kernels=kernels, members=10).fit(
        None if not weights else model.hyperparameters
    )
    weights.append(model.log_weights)
    improvement = LogExpectedImprovement(model, best_f=Y.max())
    x, _ = optimize_acqf(
        improvement,
        bounds,
        q=1,
        num_restarts=4,
        raw_samples=64,
        options={"maxiter": 50},
    )
    X, Y = torch.cat([X, x]), torch.cat([Y, branin(x)])
print(f"best of {len(Y)}: {Y.max().item():.3f}")
print(f"optimum: {function.optimal_value:.3f}")
plots.plot_weights(torch.stack(weights, dim=-1), names, first_row=12)

# %% [markdown]
# One more observation needs no refit: `condition_on_observations` learns it, weights included, and leaves the original
# model unchanged. Beyond a thousand observations, use an `EnsembleModel`, which learns each observation at the same
# cost.

# %%
more = model.condition_on_observations(X[-1:], Y[-1:])
model.log_weights.exp(), more.log_weights.exp()

# %% [markdown]
# [A moving optimum](moving_optimum.ipynb) needs experts that forget. For many runs, other problems and single
# Gaussian processes as baselines, in one table with intervals: `python -m studies optimization regret --trials 5`.
