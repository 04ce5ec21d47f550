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
# # Several outputs
#
# Three torques of a simulated robot arm are learned together, for little more than the cost of one, and a missing
# torque does not stop the others. Each is in its own unit.

# %%
# %matplotlib inline
from dataclasses import replace

import torch

import gp_ensembles as gpe
from gp_ensembles.ensembles.targets import RealTarget
from gp_ensembles.plots.canvas import ALARM, INK, SERIES, label, new_figure

generator = torch.Generator().manual_seed(0)
# seconds
time = torch.arange(900, dtype=torch.float64) / 50
angle = torch.stack(
    [(0.9 * time).sin(), (1.3 * time + 1).sin(), (0.7 * time + 2).cos()], dim=1
)
speed = angle.diff(dim=0, prepend=angle[:1]) * 50
X = torch.cat([angle, speed], dim=1)
mass = torch.tensor(
    [[9.0, 2.0, 1.0], [2.0, 5.0, 1.0], [1.0, 1.0, 2.0]], dtype=torch.float64
)
torque = angle.sin() @ mass + 0.8 * speed + 0.2 * speed.pow(3)
torque = torque + 0.2 * torch.randn(900, 3, generator=generator, dtype=torch.float64)
# the second sensor is offline
torque[700:720, 1] = torch.nan

spec = replace(
    gpe.ie_gp,
    bases=(gpe.bases.KernelDictionary(num_features=30),),
    target=RealTarget(num_outputs=3),
)
model = gpe.OnlineModel(gpe.StreamConfig(spec, warmup=300))
predictions = model.observe(X, torque)
print(
    "root mean squared error, Nm:",
    (predictions.mean - torque[300:]).square().nanmean(0).sqrt().numpy().round(2),
)

# %%
figure, axes = new_figure(3, 1, 7.5, 5.2)
names = ("shoulder", "elbow", "wrist")
for axis, name, color, says, came in zip(
    axes, names, SERIES, predictions.mean.T, torque[300:].T, strict=False
):
    axis.plot(time[600:], came[300:], ".", color=INK, markersize=2, label="target")
    axis.plot(
        time[600:], says[300:], color=color, linewidth=1.2, label="predicted before"
    )
    label(axis, name, "time, s" if name == "wrist" else "", "torque, Nm")
axes[1].axvspan(
    time[700], time[719], color=ALARM, alpha=0.15, linewidth=0, label="missing"
)
figure.legend(
    *axes[1].get_legend_handles_labels(),
    loc="outside lower center",
    ncols=3,
    frameon=False,
    fontsize=9,
)
figure
