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
# # Fusing the predictions of several models
#
# Several models predict the same thing, and each is good somewhere. A fusion makes one predictive density of theirs,
# with weights that depend on the input and are learned from rows whose targets are known. First two sensors' models
# are fused, then experts and weights are learned together, then rules with fixed weights stand beside both, and at
# the end weights are learned from a stream. This notebook runs in under a minute on one thread.

# %%
# %matplotlib inline
import warnings

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from gp_ensembles import plots
from gp_ensembles.fusion import (
    BHS,
    HMC,
    PBHS,
    Barycenter,
    EqualWeights,
    FourierPrior,
    FusedModel,
    HetGP,
    HMCSettings,
    MoGPE,
    OnlineFusion,
    PoGPE,
    ProductOfExperts,
    fit_fusion,
    fit_temperature,
    fuse,
    linear_pool,
    predict_experts,
    stacking_weights,
)
from gp_ensembles.plots.fusion import Band, Density, FusionView, plot_fusion

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)


def uniform(rows, low, high):
    return low + (high - low) * torch.rand(rows, 1, generator=generator, dtype=torch.float64)


def noise(rows, scale):
    return scale * torch.randn(rows, generator=generator, dtype=torch.float64)


# %% [markdown]
# ## Two sensors
#
# One sensor is right up to 6 and drifts beyond, the other is right from 4 on; both have small variances everywhere. A
# model was made of each, long ago. Any BoTorch or GPyTorch model can be an expert, an online ensemble, too, and so
# can a table of means and variances (`TabulatedExpert`).


# %%
def truth(X):
    return (1.2 * X[:, 0]).sin() + 0.1 * X[:, 0]


def sensor(X, bias):
    y = truth(X) + bias(X[:, 0]) + noise(len(X), 0.15)
    model = SingleTaskGP(X, y.unsqueeze(-1), input_transform=Normalize(1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


drifts = (lambda x: 0.5 * (x - 6.0).relu(), lambda x: -0.5 * (4.0 - x).relu())
sensors = [sensor(uniform(80, 0.0, 10.0), drift) for drift in drifts]

# %% [markdown]
# The weights are learned from other rows than the experts were: a model that overfits looks good on its own rows.
# There are 150 rows with known targets, and 500 to judge by. Predictions of the experts are computed once.

# %%
X, test_X = uniform(150, 0.0, 10.0), uniform(500, 0.0, 10.0)
y, test_y = truth(X) + noise(150, 0.15), truth(test_X) + noise(500, 0.15)
experts, test_experts = predict_experts(sensors, X), predict_experts(sensors, test_X)

prior = FourierPrior.from_kernel(ScaleKernel(RBFKernel()).double(), 1, 30, generator=generator)
stacked = fit_fusion(BHS(X, y, experts, prior), generator=generator)
product = fit_fusion(PBHS(X, y, experts, prior), generator=generator)
print(stacked.report.summary())
print(product.report.summary())

# %% [markdown]
# `BHS` is a mixture of the experts (linear pool), `PBHS` a normalized product of powers of them (log-linear pool); a
# `FourierPrior` is the prior of the weights' logits, here a Gaussian process of length scale one in 30 random
# frequencies (`GPPrior` is exact, for a few hundred rows). `fit_fusion` uses Laplace's approximation unless told
# otherwise.
#
# What does the mixture look like? Bands hold 90 %.

# %%
grid = torch.linspace(0.0, 10.0, 301, dtype=torch.float64).unsqueeze(-1)
grid_experts = predict_experts(sensors, grid)


def bands_of_experts(predictions):
    half = 1.645 * predictions.target_variance.sqrt()
    return Band(predictions.mean, predictions.mean - half, predictions.mean + half)


def view(fitted, X, experts, predictions=None, targets=None):
    low, middle, high = fitted.expert_weights(X).quantiles
    fused = fitted.predict(X, predictions)
    quantiles = (fused.quantile(p) for p in (0.5, 0.05, 0.95))
    density = None if targets is None else Density(targets, fused.log_prob(targets.unsqueeze(-1)))
    return FusionView(X.squeeze(-1), experts, Band(middle, low, high), Band(*quantiles), density)


seen, names = (X.squeeze(-1), y), ["first sensor", "second sensor"]
plot_fusion(view(stacked, grid, bands_of_experts(grid_experts), grid_experts), seen=seen, expert_names=names)

# %% [markdown]
# In a linear pool even a tenth of the weight on an expert that is far off shows in the 90 % band. A product has one
# hump, and its weights need not sum to one: where the errors of a sensor exceed its variance, its weight falls below
# one, and the band widens.

# %%
plot_fusion(view(product, grid, bands_of_experts(grid_experts), grid_experts), seen=seen, expert_names=names)


# %% [markdown]
# ## Rules with fixed weights
#
# Nothing has to be learned for a product of experts, a barycenter or a committee, and constant weights can be
# stacked. No constant weights are good here. Products come in two kinds, of the densities of the function
# (`space="f"`) or of the target with its noise (`space="y"`).


# %%
def describe(name, fused, y):
    inside = ((fused.cdf(y) - 0.5).abs() < 0.45).double().mean()
    print(f"{name:34} NLPD {-fused.log_prob(y).mean():7.3f}   in the 90 % band {inside:.3f}")


moments = (test_experts.mean, test_experts.target_variance)
rules = {
    "product of experts": ProductOfExperts(),
    "generalized product, 1/K": ProductOfExperts(EqualWeights()),
    "generalized product, by variance": ProductOfExperts(fit_temperature(experts, y, space="y")),
    "barycenter": Barycenter(),
}
fused = {name: fuse(test_experts, rule, space="y") for name, rule in rules.items()}
fused["linear pool, equal weights"] = linear_pool(*moments, torch.zeros(2, dtype=torch.float64))
fused["linear pool, stacked weights"] = linear_pool(*moments, stacking_weights(experts.log_prob(y)))
fused["BHS"] = stacked.predict(test_X, test_experts)
fused["P-BHS"] = product.predict(test_X, test_experts)
for number, name in enumerate(names):
    print(f"{name:34} NLPD {-test_experts.log_prob(test_y)[number].mean():7.3f}")
for name, one in fused.items():
    describe(name, one, test_y)

# %% [markdown]
# Is the fused density calibrated? The share of targets inside central intervals, and where the targets fall in the
# predictive distribution:

# %%
plots.plot_calibration(fused["BHS"].cdf(test_y))


# %% [markdown]
# ## Experts and weights learned together
#
# Without experts, `MoGPE` learns K of them from the data, with noise that depends on the input. Below, targets come
# from two branches, one of which fades; no normal density can follow them, so a product of experts (`PoGPE`) and a
# single process (`HetGP`) cannot.


# %%
def branches(rows):
    X = uniform(rows, -1.0, 1.0)
    upper = torch.rand(rows, generator=generator, dtype=torch.float64) < torch.sigmoid(3.0 * X[:, 0])
    y = torch.where(upper, 0.8 + 0.4 * (6.0 * X[:, 0]).sin(), -0.8 + 0.5 * X[:, 0] ** 2)
    return X, y + noise(rows, 0.1)


X, y = branches(300)
test_X, test_y = branches(500)
center = y.mean()  # functions have prior mean zero


def kernel(lengthscale):
    made = ScaleKernel(RBFKernel()).double()
    made.base_kernel.lengthscale = lengthscale
    return made


means, others = (FourierPrior.from_kernel(kernel(size), 1, 20, generator=generator) for size in (0.3, 0.7))
models = {
    "MoGPE": MoGPE(X, y - center, 2, means, others, others),
    "PoGPE": PoGPE(X, y - center, 2, means, others, others),
    "HetGP": HetGP(X, y - center, means, others),
}
with warnings.catch_warnings(action="ignore"):  # a mode is not the whole posterior: see below
    fits = {name: fit_fusion(model, generator=generator) for name, model in models.items()}
for name, fitted in fits.items():
    describe(f"{name}, {fitted.report.seconds:.1f} s", fitted.predict(test_X), test_y - center)

# %%
grid = torch.linspace(-1.0, 1.0, 201, dtype=torch.float64).unsqueeze(-1)
targets = torch.linspace(-1.5, 1.6, 200, dtype=torch.float64)


def learned_experts(fitted, X):
    # of one mode, where an expert is the same in all draws
    parts = fitted.model.components(fitted.theta, X)
    low, middle, high = parts.mean.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64), 0)
    half = 1.645 * parts.variance.mean(0).sqrt()
    return Band(middle, low - half, high + half)


mixture = fits["MoGPE"]
plot_fusion(view(mixture, grid, learned_experts(mixture, grid), targets=targets), seen=(X.squeeze(-1), y - center))

# %% [markdown]
# Laplace's approximation knows one mode. A mixture has many, and no sampler moves between them. `HMC` runs many
# chains at once from modes found beforehand, weighs the chains by how they predict left-out rows (PSIS-LOO and
# stacking), and reports quantities that no permutation of the experts changes. That is no proof of convergence: read
# the cautions, and judge by rows held out, as here, where Laplace's approximation does as well.

# %%
inference = HMC(num_chains=4, settings=HMCSettings(num_draws=60, num_warmup=60))
with warnings.catch_warnings(action="ignore"):  # the report says the same
    sampled = fit_fusion(models["MoGPE"], inference, generator=generator)
print(sampled.report.summary())
describe("MoGPE, chains", sampled.predict(test_X), test_y - center)

# %% [markdown]
# `sampled.sample_more(60)` goes on from there, `sampled.save("fusion.npz")` writes the draws and the chains' state,
# and `FittedFusion.load("fusion.npz", model)` reads them for the same model.
#
# ## Weights from a stream
#
# `OnlineFusion` learns weights row by row, at constant cost: logits are Bayesian basis expansions, and the density of
# the target under the pool is their likelihood. Here the two sensors come again, one reading after another, and the
# fusion predicts each before it sees it.

# %%
from gp_ensembles.features import RandomFourierFeatures

stream_X = uniform(600, 0.0, 10.0)
stream_y = truth(stream_X) + noise(600, 0.15)
ahead = predict_experts(sensors, stream_X)
features = RandomFourierFeatures.from_kernel(ScaleKernel(RBFKernel()).double(), 1, 60, generator=generator)
online = OnlineFusion(features, 2)
state, predicted = online.update(online.init(), stream_X, ahead.mean, ahead.target_variance, stream_y)
equal = linear_pool(ahead.mean, ahead.target_variance, torch.zeros(2, dtype=torch.float64))
plots.plot_score({name: one.log_prob(stream_y) for name, one in {"online fusion": predicted, "equal": equal}.items()})

# %%
grid = torch.linspace(0.0, 10.0, 301, dtype=torch.float64).unsqueeze(-1)
log_weights, shares = online.log_weights(state, grid)
first = log_weights[:, 0].exp()  # at nodes of the logits' distribution
mean = (shares.unsqueeze(-1) * first).sum(0)
spread = ((shares.unsqueeze(-1) * first.square()).sum(0) - mean.square()).clamp_min(0.0).sqrt()
weights = Band(*(torch.stack([w, 1.0 - w]) for w in (mean, (mean - spread).clamp_min(0), (mean + spread).clamp_max(1))))
now = online.predict(state, grid, grid_experts.mean, grid_experts.target_variance)
quantiles = Band(*(now.quantile(p) for p in (0.5, 0.05, 0.95)))
last = (stream_X[-200:, 0], stream_y[-200:])
plot_fusion(
    FusionView(grid.squeeze(-1), bands_of_experts(grid_experts), weights, quantiles), seen=last, expert_names=names
)

# %% [markdown]
# ## In BoTorch
#
# A fitted fusion with its experts is a BoTorch `Model`, differentiable in the inputs. Its posterior at a point is the
# predictive mixture; two points have no joint distribution, so that acquisition functions take one point at a time.
# Where is the function highest?

# %%
from botorch.acquisition import LogExpectedImprovement
from botorch.optim import optimize_acqf

model = FusedModel(stacked, sensors)
with torch.no_grad():
    best = model.posterior(grid.unsqueeze(-2)).mean.max()
bounds = torch.tensor([[0.0], [10.0]], dtype=torch.float64)
candidate, value = optimize_acqf(LogExpectedImprovement(model, best), bounds, q=1, num_restarts=3, raw_samples=32)
candidate, value

# %% [markdown]
# The paper's comparison of these models, with more experts or more frequencies: `python -m studies fusion --figure
# 3a --out out/fusion`, in minutes with `--inference laplace`.
