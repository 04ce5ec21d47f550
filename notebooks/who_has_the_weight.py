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
# # Who has the weight
#
# A straight line is what three families of experts can be; at row 500 it becomes a wave, and within some rows all
# weight goes to the waves. Weights are those before each target.

# %%
# %matplotlib inline
from dataclasses import replace

import torch

import gp_ensembles as gpe
from gp_ensembles import plots

generator = torch.Generator().manual_seed(0)
X = 4 * torch.rand(900, 1, generator=generator, dtype=torch.float64)
waves = torch.arange(900) >= 500
y = torch.where(waves, (3 * X[:, 0]).sin(), 0.5 * X[:, 0] - 1.0)
y = y + 0.3 * torch.randn(900, generator=generator, dtype=torch.float64)

bases = (gpe.bases.LinearBasis(), gpe.bases.PolynomialBasis((2,)), gpe.bases.FourierBasis(starts=(0.1,)))
spec = replace(gpe.doebe, bases=bases, random_walk_variances=(1e-3,), rule=gpe.meta_learners.FixedShare(0.01))
model = gpe.OnlineModel(gpe.StreamConfig(spec, warmup=200))
predictions = model.observe(X, y)

# %% [markdown]
# Experts of one basis, with other starts and samples of hyperparameters, are one family.

# %%
families = [name.split("/")[0] for name in model.names]
kinds = sorted(set(families))
weights = predictions.log_weights.exp()
shares = torch.stack([weights[[family == kind for family in families]].sum(0) for kind in kinds])
plots.plot_weights(shares.log(), kinds, first_row=200)
