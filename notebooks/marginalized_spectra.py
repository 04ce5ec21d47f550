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
# # Marginalized spectra
#
# Instead of choosing a kernel for a series, we integrate over kernels: all mixtures of one or two spectral
# components, each weighted by how well it explains ten years of airline passengers. The result is a forecast
# of the last year and a picture of the spectra that are compatible with the data.

# %%
# %matplotlib inline
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.mlls import ExactMarginalLogLikelihood

from gp_ensembles.data import airline_passengers
from gp_ensembles.papers.quadrature import Budget, RegressionProblem, marginalize
from gp_ensembles.papers.quadrature.prior import default_prior
from gp_ensembles.plots.canvas import (
    ALARM,
    FAINT,
    MEAN,
    draw_band,
    label,
    new_figure,
)

# matrices this small are fastest with one thread
torch.set_num_threads(1)

# %% [markdown]
# Quarterly passengers, in logarithms, so that seasons do not grow with the level. Time is the only input. The
# last year is held out: filling gaps between rows is easy, a year ahead is not.

# %%
monthly = airline_passengers().y
y = monthly.unflatten(0, (-1, 3)).mean(1).log()
years = 1950 + (torch.arange(len(y), dtype=torch.float64) + 0.5) / 4
seen, hidden = years < 1960, years >= 1960

mean, unit = y[seen].mean(), y[seen].std()
X, target = years[seen].unsqueeze(-1), (y[seen] - mean) / unit

problem = RegressionProblem(X, target, default_prior(X, target, max_components=2))
found = marginalize(problem, Budget(60), generator=torch.Generator().manual_seed(1))
print(f"log evidence {found.log_evidence:.2f} ± {found.log_evidence_sd:.2f}")
print(f"doubt: {found.doubt or 'none'}")
for n, (p, sd) in enumerate(
    zip(found.posterior_components, found.posterior_components_sd, strict=True), 1
):
    print(f"{n} component(s): {p:.3f} ± {sd:.3f}")

# %% [markdown]
# The band holds 90 %, including the uncertainty about the kernel.

# %%
grid = torch.linspace(1950, 1961, 300, dtype=torch.float64).unsqueeze(-1)
with torch.no_grad():
    # a batch of single points
    posterior = found.model().posterior(grid.unsqueeze(-2), observation_noise=True)
    levels = posterior.quantile(
        torch.tensor([0.05, 0.95], dtype=torch.float64)
    ).flatten(1)
middle, low, high = (
    (mean + unit * values).exp() for values in (posterior.mean.flatten(), *levels)
)
figure, (axis,) = new_figure(1, 1, 9.0, 3.6)
draw_band(axis, grid.flatten().numpy(), middle.numpy(), low.numpy(), high.numpy())
axis.plot(years[seen], y[seen].exp(), "o", markersize=3, color=FAINT, label="seen")
axis.plot(
    years[hidden], y[hidden].exp(), "o", markersize=3, color=ALARM, label="not seen"
)
label(axis, "predictions and rows", "year", "passengers, thousands a month")
axis.legend(frameon=False, fontsize=9, ncols=4)
figure

# %% [markdown]
# One RBF kernel, fitted to the same rows, cannot represent seasons. Below, errors of the held-out quarters.

# %%
process = SingleTaskGP(
    X, target.unsqueeze(-1), outcome_transform=None, input_transform=Normalize(1)
)
fit_gpytorch_mll(ExactMarginalLogLikelihood(process.likelihood, process))
for name, model in {
    "marginalized": found.model(),
    "one RBF kernel": process,
}.items():
    with torch.no_grad():
        predicted = (
            mean + unit * model.posterior(years[hidden, None, None]).mean.flatten()
        )
    error = (predicted.exp() - y[hidden].exp()).square().mean().sqrt()
    print(f"{name:15} {error:5.1f} thousand passengers a month")

# %% [markdown]
# Frequencies are in cycles per year, so a season is a peak at one; the peak at zero is the trend. A third component
# would capture the season beyond its first harmonic: its error is lower, and it takes three times as long.

# %%
rows, log_weights = found.top()
mixtures = found.hyperparameters(rows).mixtures
figure, (axis,) = new_figure(1, 1, 9.0, 3.6)
frequency = torch.linspace(0.0, 2.0, 2000, dtype=torch.float64)
# the larger a kernel's weight, the more opaque its spectrum; the largest is on top
opacity = (log_weights - log_weights.max()).exp().clamp(min=0.04)
for k in log_weights.argsort()[-30:].tolist():
    there = mixtures.weights[k] > 0
    weights, means, scales = (
        part[k].reshape(-1)[there]
        for part in (mixtures.weights, mixtures.means, mixtures.scales)
    )
    law = torch.distributions.Normal(means, scales)
    f = frequency.unsqueeze(-1)
    density = weights * (law.log_prob(f).exp() + law.log_prob(-f).exp())
    axis.plot(frequency, density.sum(-1), color=MEAN, alpha=float(opacity[k]))
label(
    axis, "spectra of the heaviest kernels", "frequency, cycles per year", "density"
)
axis.set_yscale("log")
axis.set_ylim(1e-5, 1e2)
figure

# %% [markdown]
# The paper's tables, with RBF and Matern kernels for comparison: `python -m studies maskerade table-5 --data FOLDER`.
