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
# # river
#
# In river's loop, which predicts and then learns each row, the ensemble can replace any of river's regressors. Here it
# is compared with a linear one on the approval of a president.

# %%
# %matplotlib inline
from river import datasets, linear_model, preprocessing

import gp_ensembles as gpe
from gp_ensembles.plots.canvas import INK, SERIES, label, new_figure

models = {
    "river's linear regression": preprocessing.StandardScaler()
    | linear_model.LinearRegression(),
    "RiverRegressor": gpe.RiverRegressor(gpe.oebe, warmup=100),
}
predicted = {name: [] for name in models}
truth = []
for x, y in datasets.TrumpApproval().take(300):
    truth.append(y)
    for name, model in models.items():
        predicted[name].append(model.predict_one(x))
        model.learn_one(x, y)
for name, values in predicted.items():
    errors = [
        abs(says - came)
        for says, came in zip(values[100:], truth[100:], strict=True)
    ]
    print(f"{name}: mean absolute error {sum(errors) / len(errors):.2f} points")

# %%
figure, (axis,) = new_figure(1, 1, 7.5, 3.6)
axis.plot(truth, ".", color=INK, markersize=3, label="approval")
for color, (name, values) in zip(
    (SERIES[1], SERIES[0]), predicted.items(), strict=True
):
    axis.plot(range(100, 300), values[100:], color=color, linewidth=1.2, label=name)
label(axis, "predictions made before each day's figure", "day", "approval, %")
axis.set_ylim(min(truth) - 2, max(truth) + 2)
figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
figure
