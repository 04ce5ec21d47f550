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
# # From knots to a stream
#
# Gaussian processes fitted to the first rows go on as the experts of an online ensemble, at a constant price per row:
# those with knots as a regression on the knots' features, exact ones as a window of the last rows.

# %%
# %matplotlib inline
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from gp_ensembles import plots
from gp_ensembles.meta_learners import FixedShare
from gp_ensembles.sparse import GreedyBlocks, select_knots, start_online

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(2)
X = torch.rand(240, 2, generator=generator, dtype=torch.float64)
y = torch.sin(8.0 * X[:, 0]) * X[:, 1] + 0.1 * torch.randn(240, generator=generator, dtype=torch.float64)

strategy = GreedyBlocks(max_knots=20, polish_iterations=10)
models = [
    select_knots(X[:80], y[:80], kernel, strategy=strategy, generator=generator).model
    for kernel in (ScaleKernel(RBFKernel()), ScaleKernel(MaternKernel()))
]
models.append(select_knots(X[:80], y[:80], ScaleKernel(RBFKernel()), generator=generator).model)  # all are knots
online = start_online(models, FixedShare(0.01), names=["RBF", "Matern", "exact"])
predictions = online.observe(X[80:], y[80:])
print(f"mean log density {predictions.log_prob.mean():.3f}; the best possible is about 0.884")

# %%
plots.plot_weights(predictions.log_weights, online.names, first_row=80)

# %% [markdown]
# What the knots leave out of the prior variance is noise of its own for each row: far from all of them predictions
# are the prior's, and rows there teach the knots little.

# %%
places = torch.tensor([[0.5, 0.5], [2.0, 2.0]], dtype=torch.float64)
for name, deviations in zip(online.names, online.predict(places).component_variance.sqrt(), strict=True):
    inside, outside = deviations.tolist()
    print(f"{name:6} standard deviation: {inside:.2f} among the rows, {outside:.2f} far from them")
