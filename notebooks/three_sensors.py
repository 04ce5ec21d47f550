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
# # Three sensors, one answer
#
# Each of three sensors is good in its own range, and the fusion learns where to trust which. Its weights depend on
# the input.

# %%
# %matplotlib inline
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles.fusion import BHS, FourierPrior, fit_fusion, moment_forecast
from gp_ensembles.plots.fusion import Band, FusionView, plot_fusion

generator = torch.Generator().manual_seed(0)


def truth(x):
    return (1.2 * x).sin() + 0.1 * x


def readings(x):
    """Means of three sensors, each good around its own place."""
    return [truth(x) + 0.08 * (x - place).square() * sign for place, sign in ((1, 1), (5, -1), (9, 1))]


def forecasts(x):
    return [moment_forecast(mean, 0.2) for mean in readings(x)]


x = 10 * torch.rand(300, generator=generator, dtype=torch.float64)
y = truth(x) + 0.15 * torch.randn(300, generator=generator, dtype=torch.float64)
kernel = ScaleKernel(RBFKernel()).double()
kernel.outputscale, kernel.base_kernel.lengthscale = 25.0, 2.0
prior = FourierPrior.from_kernel(kernel, 1, 30, generator=generator)
fusion = fit_fusion(BHS(x.unsqueeze(-1), y, forecasts(x), prior), generator=generator)

# %%
grid = torch.linspace(0.4, 9.6, 201, dtype=torch.float64)
fused = fusion.predict(grid.unsqueeze(-1), forecasts(grid))
low, middle, high = fusion.expert_weights(grid.unsqueeze(-1)).quantiles
means = torch.stack(readings(grid))
view = FusionView(
    grid,
    Band(means, means - 0.33, means + 0.33),
    Band(middle, low, high),
    Band(*(fused.quantile(level) for level in (0.5, 0.05, 0.95))),
)
plot_fusion(view, seen=(x, y), expert_names=["near", "middle", "far"], names=("distance, m", "level"))
