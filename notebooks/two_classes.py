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
# # Two classes
#
# Two moons, one point at a time: the ensemble predicts a probability for each point before it learns its class, and
# is uncertain where it has no data. The background shows its prediction after 600 points.

# %%
# %matplotlib inline
from dataclasses import replace

import torch
from sklearn.datasets import make_moons

import gp_ensembles as gpe
from gp_ensembles.ensembles.targets import BinaryTarget
from gp_ensembles.plots.canvas import label, new_figure

X, y = (
    torch.from_numpy(array).double()
    for array in make_moons(600, noise=0.25, random_state=0)
)
spec = replace(
    gpe.auto_for(BinaryTarget()),
    bases=(gpe.bases.FourierBasis(starts=(0.7,)),),
    extra_experts=(),
)
model = gpe.OnlineModel(
    gpe.StreamConfig(spec, warmup=100), ["left-right", "up-down"]
)
predictions = model.observe(X, y)
predicted = predictions.distribution.class_probabilities
right = (predicted.argmax(-1) == y[100:]).double().mean()
print(
    f"right before seeing the class: {right:.1%},",
    f"{predictions.log_prob.mean():.3f} nats per point",
)

# %%
across, up = (
    torch.linspace(low, high, 50, dtype=torch.float64)
    for low, high in ((-2.0, 3.0), (-1.5, 2.0))
)
grid = torch.cartesian_prod(across, up)
surface = model.predict(grid).class_probabilities[:, 1].reshape(50, 50).T
figure, (axis,) = new_figure(1, 1, 6.5, 4.2)
shade = axis.contourf(
    across, up, surface, levels=torch.linspace(0, 1, 11), cmap="PuOr_r", alpha=0.8
)
for number, (color, marker) in enumerate((("#542788", "o"), ("#b35806", "^"))):
    of = y == number
    axis.scatter(
        *X[of].T,
        s=10,
        color=color,
        marker=marker,
        edgecolor="white",
        linewidth=0.3,
        label=f"class {number}",
    )
figure.colorbar(shade, ax=axis, label="probability of class 1")
label(axis, "what is said of each place after 600 points", "x1", "x2")
figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
figure
