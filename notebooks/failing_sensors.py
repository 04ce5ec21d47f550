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
# # Sensors that fail, filled in
#
# Eight sensors of a machine turn with one hidden angle, and slowly everything wears. Three of them fail in each batch
# before it is repaired: a latent variable model fills them in from the five that are left, and learns the batch once
# it is complete. Its weights walk at random (`die_gplvm`), so that it forgets what is worn out.

# %%
# %matplotlib inline
import torch

from gp_ensembles.gplvm import die_gplvm
from gp_ensembles.plots.canvas import INK, SERIES, label, new_figure

torch.set_num_threads(1)
source, num_rows, broken = torch.Generator().manual_seed(0), 300, [1, 4, 6]
angle = 6.28 * torch.rand(num_rows, 1, generator=source, dtype=torch.float64)
phase = torch.linspace(0, 5.25, 8, dtype=torch.float64)
wear = torch.linspace(0, 1.0, num_rows, dtype=torch.float64).unsqueeze(-1)
gain = torch.randn(8, generator=source, dtype=torch.float64)
speed = torch.tensor([1.0, 1, 1, 1, 1, 2, 2, 2], dtype=torch.float64)
waves = torch.sin(speed * angle + phase + wear * gain)
waves = waves + 0.03 * torch.randn(num_rows, 8, generator=source, dtype=torch.float64)

# %% [markdown]
# The root mean squared error of what was filled in, beside that of each sensor's mean.

# %%
model = die_gplvm(8, 2, 20, generator=torch.Generator().manual_seed(0))  # 20 frequencies
model.start(waves[:100])
mean, filled, truth = waves[:100, broken].mean(0), [], []
for batch in waves[100:].split(100):
    gaps = batch.clone()
    gaps[:, broken] = torch.nan
    truth.append(batch[:, broken])
    filled.append(model.impute(gaps)[:, broken])
    model.update(batch, block_size=100)
    errors = [(said - truth[-1]).square().mean().sqrt().item() for said in (filled[-1], mean)]
    print(f"batch {len(filled)}: error {errors[0]:.2f}, of the mean {errors[1]:.2f}")

# %%
figure, axes = new_figure(1, 3, 10.0, 3.6)
for axis, sensor, color, said, came in zip(axes, broken, SERIES, filled[-1].T, truth[-1].T, strict=False):
    axis.plot([-1.1, 1.1], [-1.1, 1.1], color=INK, linewidth=0.8)
    axis.plot(came, said, ".", color=color, markersize=5)
    label(axis, f"sensor {sensor}, last batch", "what it would have said", "filled in")
figure

# %% [markdown]
# A place maps back to a row, with the uncertainty of weights and noise together. Below, places and the standard
# deviation of the first sensor there.

# %%
walk = torch.stack([torch.linspace(-1, 6, 5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)], dim=-1)
back = model.inverse_transform(walk, torch.full((5,), model.best_expert))
torch.cat([walk, back.variance[:, :1].sqrt()], dim=-1).round(decimals=2)
