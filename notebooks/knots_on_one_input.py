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
# # Knots where they are needed
#
# Knots are added where they raise a bound of the evidence most: they go where rows are, and none is wasted on the
# gap. Twenty of them stand for two hundred rows.

# %%
# %matplotlib inline
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles import plots
from gp_ensembles.sparse import GreedyBlocks, select_knots

generator = torch.Generator().manual_seed(2)
x = torch.rand(200, generator=generator, dtype=torch.float64)
x = torch.where(x < 0.3, 10 * x, 4 + 6 * x).sort().values  # none between 3 and 5.8
y = (0.5 * x).sin() + 0.8 * (2.4 * x).sin() * torch.sigmoid(3 * (x - 6))
y = y + 0.15 * torch.randn(200, generator=generator, dtype=torch.float64)
X = x.unsqueeze(-1)

strategy = GreedyBlocks(max_knots=20, polish_iterations=50)
found = select_knots(X, y, ScaleKernel(RBFKernel()), strategy=strategy, generator=generator)
last = found.history[-1]
print(f"{len(found.knots)} knots: the evidence lies between {last.objective:.1f} and {last.upper_bound:.1f} nats")

# %%
grid = torch.linspace(0, 10, 301, dtype=torch.float64).unsqueeze(-1)
said = found.predict(grid)
fit = plots.KnotFit(found.knots, said.mean, said.quantile(0.05), said.quantile(0.95))
plots.plot_knots(grid, fit, seen=(X, y), title=f"{len(found.knots)} knots for {len(y)} rows")
