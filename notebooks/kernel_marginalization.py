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
# # Marginalizing over kernels
#
# Which kernel has a series? Here the question is not answered but integrated out: spectral mixtures with one to five
# components, each weighed by how well it explains the data, within a stated number of likelihoods. The result is a
# predictive distribution, the evidence with its uncertainty, a posterior over the number of components and a picture
# of the spectra. This notebook runs in seconds on one thread.

# %%
# %matplotlib inline
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.mlls import ExactMarginalLogLikelihood

from gp_ensembles import plots
from gp_ensembles.bayesian_quadrature import Budget, PriorPolicy, RegressionProblem, Search, marginalize
from gp_ensembles.bayesian_quadrature.default_priors import default_prior
from gp_ensembles.data import airline_passengers

torch.set_num_threads(1)  # matrices this small are fastest with one
generator = torch.Generator().manual_seed(0)

# %% [markdown]
# ## Rows
#
# Monthly airline passengers from 1950 to 1960. The time is the only input. A tenth of the months are hidden, and so
# is the whole of the last year: gaps between rows are easy, a year ahead is not.

# %%
y = airline_passengers().y
years = 1950 + torch.arange(len(y), dtype=torch.float64) / 12
hidden = years >= 1960
hidden[torch.randperm(120, generator=generator)[:12]] = True

mean, unit = y[~hidden].mean(), y[~hidden].std(unbiased=False)
X, target = years[~hidden].unsqueeze(-1), (y[~hidden] - mean) / unit
X_hidden, y_hidden = years[hidden].unsqueeze(-1), (y[hidden] - mean) / unit
X.shape, X_hidden.shape

# %% [markdown]
# ## Fit
#
# A problem is data and a prior over kernels, made here from the spacing and the range of the inputs, with up to three
# components. Of 100 likelihoods some go to draws from the prior, some to the peaks of the periodogram and to
# gradient ascents. The likelihood is a spike, so importance sampling from the modes that were found gives the
# evidence; it ends when its standard deviation is small.

# %%
problem = RegressionProblem(X, target, default_prior(X, target, max_components=3))
found = marginalize(problem, Budget(100), generator=torch.Generator().manual_seed(1))
found.log_evidence, found.log_evidence_sd, found.doubt, found.num_evaluations

# %%
months = torch.linspace(1950, 1961, 400, dtype=torch.float64).unsqueeze(-1)
model = found.model()


def described(model, X):
    # each row on its own: a batch of single points
    posterior = model.posterior(X.unsqueeze(-2), observation_noise=True)
    levels = torch.tensor([0.05, 0.95], dtype=torch.float64)
    low, high = posterior.quantile(levels).flatten(1)
    return [mean + unit * values for values in (posterior.mean.flatten(), low, high)]


plots.plot_fit(
    months.squeeze(-1),
    *described(model, months),
    seen=(years[~hidden], y[~hidden]),
    unseen=(years[hidden], y[hidden]),
    names=("year", "passengers, thousands"),
)

# %% [markdown]
# ## How many components, which frequencies
#
# The posterior over the number of components has a standard deviation of its own: it is an estimate. Frequencies are
# in cycles per year, so a season is a peak at one and at its multiples.

# %%
for n, (p, sd) in enumerate(zip(found.posterior_components, found.posterior_components_sd, strict=True), 1):
    print(f"{n} component(s): {p:.3f} ± {sd:.3f}")

# %%
rows, log_weights = found.top()
mixtures = found.hyperparameters(rows).mixtures
plots.plot_spectra(
    mixtures.weights, mixtures.means.squeeze(-1), mixtures.scales.squeeze(-1), log_weights, input_name="years"
)

# %% [markdown]
# ## Evidence
#
# The quadrature of the paper fits a surrogate to the likelihoods of the search. Where the likelihood is a spike, no
# surrogate knows its width: its number is far off, and its standard deviation does not say so. Draws from the prior
# alone miss the spike.

# %%
drawn = marginalize(
    problem,
    Budget(60, draws=0),
    Search(PriorPolicy(), num_ascents=0, use_periodogram=False),
    generator=torch.Generator().manual_seed(1),
)
print(f"importance sampling {found.log_evidence:.1f} ± {found.log_evidence_sd:.1f}")
print(f"quadrature {found.quadrature.log_evidence:.1f} ± {found.quadrature.log_evidence_sd:.1f}")
print(f"draws from the prior: {drawn.doubt}")

# %% [markdown]
# ## Against one kernel
#
# The scores of the hidden months: the error in thousands of passengers, and the mean log density of a month.

# %%
process = SingleTaskGP(X, target.unsqueeze(-1), outcome_transform=None, input_transform=Normalize(1))
fit_gpytorch_mll(ExactMarginalLogLikelihood(process.likelihood, process))


def scores(posterior, log_prob):
    error = (posterior.mean.flatten() - y_hidden).square().mean().sqrt() * unit
    return round(error.item(), 2), round((log_prob.mean() - unit.log()).item(), 3)


def predicted(model):
    with torch.no_grad():
        return model.posterior(X_hidden.unsqueeze(-2), observation_noise=True)


result = {}
for name, mixture in {"marginalized": predicted(model), "prior draws": predicted(drawn.model())}.items():
    result[name] = scores(mixture, mixture.log_prob(y_hidden[:, None, None]))
normal = predicted(process)
each = torch.distributions.Normal(normal.mean, normal.variance.sqrt())
result["one RBF kernel"] = scores(normal, each.log_prob(y_hidden[:, None, None]))
result

# %% [markdown]
# The paper's tables, ten folds or ten seeds, with single spectral mixtures, RBF and Matern kernels beside them:
# `python -m studies maskerade --table 5 --data FOLDER --out out/table5`.
