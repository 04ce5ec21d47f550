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
# # Weights from a stream
#
# `OnlineFusion` learns row by row, at constant cost, which of two sensors to trust where. It predicts each reading
# before it sees it; logits are Bayesian basis expansions, and the density of the target under the pool is their
# likelihood.

# %%
# %matplotlib inline
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles import plots
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.fusion import OnlineFusion, linear_pool
from gp_ensembles.plots.fusion import Band, FusionView, plot_fusion

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)


def truth(x):
    return (1.2 * x).sin() + 0.1 * x


def sensors(x):
    """Means and variances of two sensors: one is right up to 6 and drifts beyond, the other is right from 4 on."""
    mean = torch.stack([truth(x) + 0.5 * (x - 6.0).relu(), truth(x) - 0.5 * (4.0 - x).relu()])
    return mean, torch.full_like(mean, 0.15**2)


x = 10.0 * torch.rand(600, generator=generator, dtype=torch.float64)
y = truth(x) + 0.15 * torch.randn(600, generator=generator, dtype=torch.float64)
features = RandomFourierFeatures.from_kernel(ScaleKernel(RBFKernel()).double(), 1, 60, generator=generator)
online = OnlineFusion(features, 2)
state, predicted = online.update(online.init(), x.unsqueeze(-1), *sensors(x), y)
equal = linear_pool(*sensors(x), torch.zeros(2, dtype=torch.float64))
for name, one in {"online fusion": predicted, "equal weights": equal}.items():
    print(f"{name:13} mean log density {one.log_prob(y).mean():.3f}")
plots.plot_score({name: one.log_prob(y) for name, one in {"online fusion": predicted, "equal": equal}.items()})

# %% [markdown]
# What it knows after 600 rows: the weights with their standard deviations, and what it predicts now, beside the last
# 200 rows. Bands of predictions hold 90 %.

# %%
grid = torch.linspace(0.0, 10.0, 301, dtype=torch.float64)
log_weights, shares = online.log_weights(state, grid.unsqueeze(-1))
first = log_weights[:, 0].exp()  # at nodes of the logits' distribution
mean = (shares.unsqueeze(-1) * first).sum(0)
spread = ((shares.unsqueeze(-1) * first.square()).sum(0) - mean.square()).clamp_min(0.0).sqrt()
weights = Band(*(torch.stack([w, 1.0 - w]) for w in (mean, (mean - spread).clamp_min(0), (mean + spread).clamp_max(1))))
now = online.predict(state, grid.unsqueeze(-1), *sensors(grid))
center, half = sensors(grid)[0], 1.645 * sensors(grid)[1].sqrt()
view = FusionView(
    grid,
    Band(center, center - half, center + half),
    weights,
    Band(*(now.quantile(p) for p in (0.5, 0.05, 0.95))),
)
plot_fusion(view, seen=(x[-200:], y[-200:]), expert_names=["first sensor", "second sensor"])
