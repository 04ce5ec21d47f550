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
# # scikit-learn
#
# `OnlineRegressor` works like any other regressor: here it is cross-validated together with two of scikit-learn's own,
# on a table without time order. Unlike those, it also quantifies its uncertainty.

# %%
# %matplotlib inline
from dataclasses import replace

import numpy as np
import torch
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neighbors import KNeighborsRegressor

import gp_ensembles as gpe
from gp_ensembles.plots.canvas import SERIES, label, new_figure

made = gpe.data.friedman1(300, generator=torch.Generator().manual_seed(0)).table
X, y = made.X.numpy(), made.y.numpy()
table = replace(gpe.light, lags=None)  # rows are in no order
models = {
    "OnlineRegressor": gpe.OnlineRegressor(table, random_state=0),
    "nearest neighbors": KNeighborsRegressor(),
    "Bayesian ridge": BayesianRidge(),
}
folds = KFold(3, shuffle=True, random_state=0)
scores = {
    name: cross_val_score(model, X, y, cv=folds) for name, model in models.items()
}
model = models["OnlineRegressor"].fit(X[:250], y[:250])
mean, deviation = model.predict(X[250:], return_std=True)
print(
    f"{np.mean(np.abs(y[250:] - mean) < 1.645 * deviation):.0%}",
    "of 50 further targets in their 90 % bands",
)

# %%
figure, (left, right) = new_figure(1, 2, 8.5, 3.6)
for place, (color, values) in enumerate(zip(SERIES, scores.values(), strict=False)):
    left.plot(
        values,
        np.full(3, place) + np.linspace(-0.1, 0.1, 3),
        "o",
        color=color,
        markersize=6,
    )
label(left, "three folds", "R² (1 is perfect)", "")
left.set_yticks(range(3), list(scores))
left.set_ylim(2.5, -0.5)
right.errorbar(
    mean,
    y[250:],
    xerr=1.645 * deviation,
    fmt="o",
    markersize=3.5,
    elinewidth=0.8,
    color=SERIES[0],
)
right.axline((15, 15), slope=1, color="#9aa5b1", linestyle=":")
label(right, "targets and means with 90 % bands", "predicted", "target")
figure
