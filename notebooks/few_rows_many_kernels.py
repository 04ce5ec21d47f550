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
# # All kernels, a hundred likelihoods
#
# Forty noisy rows of two waves, and no kernel chosen: all mixtures of two spectral components are integrated out
# within a hundred likelihoods. Bands hold what the rows leave open, the kernel included.

# %%
# %matplotlib inline
import torch

from gp_ensembles.bayesian_quadrature import Budget, RegressionProblem, marginalize
from gp_ensembles.bayesian_quadrature.default_priors import default_prior
from gp_ensembles.plots.canvas import ALARM, FAINT, draw_band, label, new_figure

generator = torch.Generator().manual_seed(0)
X = torch.linspace(0, 6, 60, dtype=torch.float64).unsqueeze(-1)
wave = (5 * X[:, 0]).sin() + 0.6 * (8 * X[:, 0]).sin()
y = wave + 0.15 * torch.randn(60, generator=generator, dtype=torch.float64)
known, later = slice(0, 40), slice(40, 60)

problem = RegressionProblem(X[known], y[known], default_prior(X[known], y[known], 2))
found = marginalize(problem, Budget(evaluations=100), generator=generator)
print(f"log evidence {found.log_evidence:.2f} ± {found.log_evidence_sd:.2f}")
print("one component, two:", [round(float(share), 2) for share in found.posterior_components])

# %%
grid = torch.linspace(0, 6, 201, dtype=torch.float64).unsqueeze(-1)
with torch.no_grad():
    posterior = found.model().posterior(grid.unsqueeze(-2), observation_noise=True)
    low, high = posterior.quantile(torch.tensor([0.05, 0.95], dtype=torch.float64)).flatten(1)
figure, (axis,) = new_figure(1, 1, 9.0, 3.6)
draw_band(axis, grid.flatten().numpy(), posterior.mean.flatten().numpy(), low.numpy(), high.numpy())
axis.plot(X[known, 0], y[known], "o", markersize=3, color=FAINT, label="seen")
axis.plot(X[later, 0], y[later], "o", markersize=3, color=ALARM, label="not seen")
label(axis, "predictions and rows", "time, s", "signal, mV")
axis.legend(frameon=False, fontsize=9, ncols=4)
figure
