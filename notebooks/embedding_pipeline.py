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
# # An embedding in a pipeline, with a kernel of one's own
#
# `EnsembleGPLVM` is an online ensemble of latent variable models as a scikit-learn transformer: it takes gaps, learns
# in pieces and fits in a pipeline. Any stationary GPyTorch kernel can be an expert.

# %%
# %matplotlib inline
import torch
from gpytorch.kernels import MaternKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gp_ensembles.estimators.latent import EnsembleGPLVM
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.gplvm import IEGPLVM
from gp_ensembles.plots import plot_embedding

torch.set_num_threads(1)
source = torch.Generator().manual_seed(0)
angle = 6.28 * torch.rand(250, 1, generator=source, dtype=torch.float64)
speed = torch.tensor([1.0, 1, 1, 1, 1, 1, 1, 2], dtype=torch.float64)
rows = torch.sin(speed * angle + torch.linspace(0, 5, 8, dtype=torch.float64))
rows = rows + 0.03 * torch.randn(250, 8, generator=source, dtype=torch.float64)


# %% [markdown]
# Three Matern kernels of different length scales are the experts.


# %%
def rough(num_outputs, num_latent, num_frequencies, *, settings, generator):
    kernels = [MaternKernel(nu=2.5).double() for _ in range(3)]
    for kernel, lengthscale in zip(kernels, (0.5, 1.0, 2.0), strict=True):
        kernel.lengthscale = lengthscale
    features = RandomFourierFeatures.from_kernels(kernels, num_latent, 2 * num_frequencies, generator=generator)
    return IEGPLVM(features, num_outputs, settings=settings)


embedder = EnsembleGPLVM(n_components=2, warmup=100, block_size=50, preset=rough, random_state=0)
pipeline = make_pipeline(StandardScaler(), embedder).fit(rows[:200].numpy())
print("weights of the experts:", embedder.expert_weights_.round(3))

# %% [markdown]
# Fifty rows that the pipeline has not seen get their places: they lie in the order of the angle that turns the
# sensors.

# %%
places = torch.as_tensor(pipeline.transform(rows[200:].numpy()))
degrees = angle[200:].flatten().rad2deg()
plot_embedding(places, degrees, label_name="hidden angle, degrees", title="50 further rows of eight sensors")
