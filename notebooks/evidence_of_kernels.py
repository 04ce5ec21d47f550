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
# # The evidence of all kernels, and its doubt
#
# Marginalizing over kernels is an integral of the likelihood over their hyperparameters. Where the likelihood is a
# spike, three ways to compute it differ much: Bayesian quadrature, draws from the prior, and importance sampling from
# the modes that ascents find. Only a number that can be trusted comes without a doubt.

# %%
# %matplotlib inline
import torch

from gp_ensembles.bayesian_quadrature import Budget, PriorPolicy, RegressionProblem, Search, marginalize
from gp_ensembles.bayesian_quadrature.default_priors import default_prior
from gp_ensembles.plots.canvas import INK, SERIES, label, new_figure

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
X = torch.linspace(0, 5, 40, dtype=torch.float64).unsqueeze(-1)
wave = (5 * X[:, 0]).sin() + 0.6 * (8 * X[:, 0]).sin()
y = wave + 0.1 * torch.randn(40, generator=generator, dtype=torch.float64)
problem = RegressionProblem(X, y, default_prior(X, y, max_components=2))

# %% [markdown]
# A search evaluates sixty likelihoods: draws from the prior, peaks of the periodogram, and gradient ascents. The
# quadrature fits a surrogate to these. Importance sampling goes on from the modes until its standard deviation is
# small and searches from other starts find no further mode.

# %%
found = marginalize(problem, Budget(60), generator=torch.Generator().manual_seed(1))
drawn = marginalize(
    problem,
    Budget(40, draws=0),
    Search(PriorPolicy(), num_ascents=0, use_periodogram=False),
    generator=torch.Generator().manual_seed(1),
)
print(f"importance sampling {found.log_evidence:7.1f} ± {found.log_evidence_sd:.2f}, doubt: {found.doubt or 'none'}")
print(f"quadrature          {found.quadrature.log_evidence:7.1f} ± {found.quadrature.log_evidence_sd:.2f}")
print(f"draws of the prior  {drawn.log_evidence:7.1f} ± {drawn.log_evidence_sd:.2f}, doubt: {drawn.doubt}")

# %% [markdown]
# The surrogate does not know how wide a spike is: its number is off by more than its standard deviation says. Draws
# from the prior alone miss the spike. Below, what is known while likelihoods are spent. During a search each kernel
# stands for its neighborhood, which says too much once ascents have climbed the spike: 12 nats after sixty likelihoods.
# The diamond is what the quadrature makes of the same sixty in the end, 6.8, with two standard deviations. The dashed
# line is the number that importance sampling ends with, 2.6.

# %%
figure, (axis,) = new_figure(1, 1, 7.5, 4.0)
search = [one for one in found.history if one.evaluations <= 60]
sampling = [one for one in found.history if one.evaluations > 60]
names = ("search with ascents", "importance sampling", "draws of the prior")
for color, name, rounds in zip(SERIES, names, (search, sampling, drawn.history), strict=False):
    axis.plot([one.evaluations for one in rounds], [one.log_evidence for one in rounds], ".-", color=color, label=name)
last = found.quadrature
axis.errorbar(
    60, last.log_evidence, 2 * last.log_evidence_sd, fmt="D", markersize=5, color=SERIES[3], label="quadrature"
)
axis.axhline(found.log_evidence, color=INK, linestyle="--", linewidth=1.0, label="the end of importance sampling")
label(axis, "log evidence by the likelihoods spent", "likelihoods", "nats")
axis.set_xscale("log")
figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
figure

# %% [markdown]
# `found.posterior_components` holds the evidence of each number of components as a share. A result in doubt has an
# infinite standard deviation, and `doubt` says what to do. On real rows: [marginalized
# spectra](marginalized_spectra.ipynb).
