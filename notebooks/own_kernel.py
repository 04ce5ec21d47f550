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
# # A kernel of your own
#
# Any stationary GPyTorch kernel becomes an expert by random features: with 16 of them the covariance is rough, with
# 1000 it is the kernel's. The price of a row grows with their number, not with the rows seen.

# %%
# %matplotlib inline
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel

from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.plots.canvas import INK, SERIES, label, new_figure

kernel = ScaleKernel(MaternKernel(nu=2.5)).double()
kernel.base_kernel.lengthscale, kernel.outputscale = 0.5, 1.0
distance = torch.linspace(0.0, 3.0, 151, dtype=torch.float64).unsqueeze(-1)
with torch.no_grad():
    exact = kernel(distance, torch.zeros(1, 1, dtype=torch.float64)).to_dense().flatten()

covariances = {}
for number in (16, 100, 1000):
    features = RandomFourierFeatures.from_kernel(kernel, 1, number, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        Phi = features(distance)
    covariances[number] = Phi @ Phi[0]
    print(f"{number:4} features: off by {(covariances[number] - exact).abs().max():.3f} at most")

# %%
figure, (axis,) = new_figure(1, 1, 7.5, 3.6)
for color, (number, values) in zip(SERIES[1:], covariances.items(), strict=False):
    axis.plot(distance, values, color=color, linewidth=1.4, label=f"{number} features")
axis.plot(distance, exact, color=INK, linewidth=1.6, linestyle="--", label="Matern 5/2")
label(axis, "what the features make of a kernel", "distance of two inputs", "covariance")
figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
figure
