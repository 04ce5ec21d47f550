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
# # Mixtures of Gaussian process experts
#
# Targets come from two branches, one of which fades. A mixture learns two experts and the weights between them from
# the same rows. No single normal density can follow both branches, so neither a product of experts nor a single process
# can.

# %%
# %matplotlib inline
import textwrap
import warnings

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles.papers.fusion import (
    HMC,
    FourierPrior,
    HetGP,
    MoGPE,
    PoGPE,
    fit_fusion,
)
from gp_ensembles.papers.fusion.chees import HMCSettings
from gp_ensembles.plots.canvas import FAINT, INK, SERIES, label, new_figure

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)


def branches(rows):
    X = 2.0 * torch.rand(rows, 1, generator=generator, dtype=torch.float64) - 1.0
    upper = torch.rand(
        rows, generator=generator, dtype=torch.float64
    ) < torch.sigmoid(3.0 * X[:, 0])
    y = torch.where(
        upper, 0.8 + 0.4 * (6.0 * X[:, 0]).sin(), -0.8 + 0.5 * X[:, 0] ** 2
    )
    return X, y + 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)


def kernel(lengthscale):
    made = ScaleKernel(RBFKernel()).double()
    made.base_kernel.lengthscale = lengthscale
    return made


def describe(name, fitted):
    fused = fitted.predict(test_X)
    inside = ((fused.cdf(test_y - center) - 0.5).abs() < 0.45).double().mean()
    print(
        f"{name:13} NLPD {-fused.log_prob(test_y - center).mean():6.3f}  ",
        f"in the 90 % band {inside:.3f}",
    )


# %% [markdown]
# ## Three models
#
# `MoGPE` is a mixture, `PoGPE` a product, `HetGP` a single process; in all of them the noise depends on the input.

# %%
X, y = branches(250)
test_X, test_y = branches(500)
# functions have prior mean zero
center = y.mean()
means, others = (
    FourierPrior.from_kernel(kernel(size), 1, 15, generator=generator)
    for size in (0.3, 0.7)
)
models = {
    "MoGPE": MoGPE(X, y - center, 2, means, others, others),
    "PoGPE": PoGPE(X, y - center, 2, means, others, others),
    "HetGP": HetGP(X, y - center, means, others),
}
# a mode is not the whole posterior: see below
with warnings.catch_warnings(action="ignore"):
    fits = {
        name: fit_fusion(model, generator=generator)
        for name, model in models.items()
    }
for name, fitted in fits.items():
    describe(name, fitted)

# %%
grid = torch.linspace(-1.0, 1.0, 101, dtype=torch.float64).unsqueeze(-1)
targets = torch.linspace(-1.5, 1.6, 100, dtype=torch.float64)
mixture = fits["MoGPE"]
# of a single mode, where an expert is the same in all draws
parts = mixture.model.components(mixture.theta, grid)
low, middle, high = parts.mean.quantile(
    torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64), 0
)
half = 1.645 * parts.variance.mean(0).sqrt()
fused, shares = mixture.predict(grid), mixture.expert_weights(grid).quantiles
x = grid.squeeze(-1)
figure, axes = new_figure(3, 1, 9.0, 8.4)
for k, color in enumerate(SERIES[:2]):
    axes[0].plot(x, middle[k], color=color, label=f"expert {k + 1}")
    axes[0].fill_between(
        x, low[k] - half[k], high[k] + half[k], color=color, alpha=0.2
    )
    axes[1].plot(x, shares[1, k], color=color)
    axes[1].fill_between(x, shares[0, k], shares[2, k], color=color, alpha=0.2)
# the darker, the higher the density, on a logarithmic scale of four nats
density = fused.log_prob(targets.unsqueeze(-1))
top = density.max().item()
axes[2].pcolormesh(
    x, targets, density, cmap="Blues", shading="gouraud", vmin=top - 4, vmax=top + 2
)
for level in (0.05, 0.5, 0.95):
    axes[2].plot(x, fused.quantile(level), color=INK, linewidth=0.8)
axes[2].plot(X.squeeze(-1), y - center, "o", color=FAINT, markersize=2.5)
axes[2].set_ylim(targets[0].item(), targets[-1].item())
axes[0].legend(frameon=False)
label(axes[0], "the experts and their bands", "", "y")
label(axes[1], "their weights", "", "weight")
label(axes[2], "the fused density, its median and 90 % band", "x", "y")
figure

# %% [markdown]
# ## Beyond one mode
#
# Laplace's approximation covers one mode. A mixture has many, and no sampler moves between them. `HMC` runs many
# chains at once from modes found beforehand, weights the chains by how well they predict left-out rows (PSIS-LOO and
# stacking), and reports quantities that do not depend on the order of the experts. This does not prove convergence:
# read the warnings, and judge by held-out rows, as here, where Laplace's approximation does as well.

# %%
inference = HMC(num_chains=3, settings=HMCSettings(num_draws=30, num_warmup=30))
# the report says the same
with warnings.catch_warnings(action="ignore"):
    sampled = fit_fusion(models["MoGPE"], inference, generator=generator)
for line in sampled.report.summary().splitlines():
    print(textwrap.fill(line, 80, subsequent_indent="    "))
describe("MoGPE, chains", sampled)

# %% [markdown]
# `sampled.sample_more(60)` continues from there, `sampled.save("fusion.npz")` writes the draws and the chains' state,
# and `FittedFusion.load("fusion.npz", model)` loads them for the same model.
