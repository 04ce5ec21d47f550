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
# # Expected improvement with a mixture
#
# The expected improvement of a mixture is the weighted mean of its experts', and not that of one normal distribution
# with the same mean and variance. They differ most where an improvement is improbable.

# %%
# %matplotlib inline
import torch
from botorch.acquisition import LogExpectedImprovement

from gp_ensembles.bo import ExactEnsembleModel, GaussianView, WeightedAcquisition
from gp_ensembles.plots.canvas import BAND, INK, MEAN, SERIES, label, new_figure

X = torch.tensor([[0.0], [0.12], [0.3], [0.47], [0.66], [1.0]], dtype=torch.float64)
Y = (11 * X).sin() + (X > 0.4).double()
model = ExactEnsembleModel(X, Y).fit()
for name, weight in zip(("RBF", "Matern 5/2", "Matern 3/2"), model.log_weights.exp(), strict=True):
    print(f"{name}: weight {weight:.3f}")

grid = torch.linspace(0, 1, 301, dtype=torch.float64).unsqueeze(-1)
points = grid.unsqueeze(-2)  # a batch of single points
exact = WeightedAcquisition(model, lambda experts: LogExpectedImprovement(experts, best_f=Y.max()))
normal = LogExpectedImprovement(GaussianView(model), best_f=Y.max())
with torch.no_grad():
    curves = {"the mixture's": exact(points), "of one normal distribution": normal(points)}
    posterior = model.posterior(points)
mean, half = posterior.mean.flatten(), 1.645 * posterior.variance.sqrt().flatten()

# %%
figure, (above, below) = new_figure(2, 1, 7.0, 5.0)
x = grid.flatten()
above.fill_between(x, mean - half, mean + half, color=BAND, alpha=0.6, linewidth=0, label="mean and 1.645 deviations")
above.plot(x, mean, color=MEAN)
above.plot(X, Y, "o", color=INK, markersize=5, label="data")
label(above, "an ensemble of three kernels", "", "y")
for color, (name, values) in zip((SERIES[4], SERIES[0]), curves.items(), strict=True):
    below.plot(x, values, color=color, label=name)
    below.plot(x[values.argmax()], values.max(), "v", color=color, markersize=8)
label(below, "logarithm of the expected improvement", "x", "log improvement")
below.set_ylim(-25, 0)
figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
figure
