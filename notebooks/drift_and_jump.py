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
# # A drift and a jump
#
# A sensor's gain drifts and its offset jumps at row 500: an ensemble that may forget is right again after some rows,
# one that stands still is not. Both see the same rows, and neither is told that anything changed.

# %%
# %matplotlib inline
from dataclasses import replace

import torch

import gp_ensembles as gpe
from gp_ensembles.plots.canvas import ALARM, INK, SERIES, label, new_figure

draw = gpe.data.drifting_sensor(900, jump_at=500, gap=(0, 0), generator=torch.Generator().manual_seed(0))
X, y = draw.table.X, draw.table.y
bases = (gpe.bases.LinearBasis(), gpe.bases.FourierBasis(starts=(0.7,)))
specs = {"static (oebe)": gpe.oebe, "static and walking (e_doebe)": gpe.e_doebe}
errors = {}
for name, spec in specs.items():
    model = gpe.OnlineModel(gpe.StreamConfig(replace(spec, bases=bases), warmup=200))
    predictions = model.observe(X, y)  # each row is predicted before it is learned
    errors[name] = (predictions.mean - draw.truth[200:]).abs()
    print(f"{name}: {predictions.log_prob.mean():.2f} nats a row")

# %%
figure, (above, below) = new_figure(2, 1, 7.5, 5.0)
above.plot(y, ".", markersize=2.5, color=INK, label="target")
label(above, "what the sensor says", "", "y")
smooth = torch.ones(1, 1, 15, dtype=torch.float64) / 15
for color, (name, error) in zip(SERIES[1::-1], errors.items(), strict=True):
    mean = torch.nn.functional.conv1d(error[None, None], smooth).flatten()
    below.plot(range(214, 214 + len(mean)), mean, color=color, label=name)
label(below, "distance of the prediction from the truth, mean of 15 rows", "row", "distance")
below.set_yscale("log")
for axis in (above, below):
    axis.axvline(500, color=ALARM, linewidth=1, linestyle="--", label="jump")
    axis.set_xlim(0, 900)
figure.legend(*below.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
figure
