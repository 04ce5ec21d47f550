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
# # An external model: your own model as an expert
#
# A random forest that provides no probabilities joins the ensemble as another expert, and gets as much weight
# as its predictions deserve. The true function has steps, which forests capture and smooth bases do not.

# %%
# %matplotlib inline
from dataclasses import replace

import torch
from sklearn.ensemble import RandomForestRegressor

import gp_ensembles as gpe
from gp_ensembles import plots
from gp_ensembles.ensembles.external_models import ExternalModel
from gp_ensembles.experts.adapters import RegressorAdapter

generator = torch.Generator().manual_seed(0)
X = torch.rand(700, 2, generator=generator, dtype=torch.float64)
y = (
    50
    + 10 * (X > 0.5).double().sum(-1)
    + torch.randn(700, generator=generator, dtype=torch.float64)
)

forest = RegressorAdapter(
    RandomForestRegressor(20, min_samples_leaf=5, random_state=0)
)
spec = replace(gpe.e_doebe, bases=(gpe.bases.LinearBasis(),), rule=gpe.light.rule)
alone = gpe.OnlineModel(gpe.StreamConfig(spec, warmup=200)).observe(X, y)
model = gpe.OnlineModel(
    gpe.StreamConfig(
        replace(
            spec, extra_experts=(ExternalModel(forest, every=200, name="forest"),)
        ),
        warmup=200,
    )
)
both = model.observe(X, y)
print(
    f"alone {alone.log_prob.mean():.2f},",
    f"with the external model {both.log_prob.mean():.2f} nats per row",
)

# %%
adapter = torch.tensor([name.startswith("forest") for name in model.names])
weights = both.log_weights.exp()
shares = torch.stack([weights[adapter].sum(0), weights[~adapter].sum(0)])
plots.plot_weights(
    shares.clamp_min(1e-300).log(),
    ["random forest (external model)", "linear experts"],
    first_row=200,
)
