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
# # A map of a stream
#
# Ten sensors turn with one hidden angle, and each row gets a place on a map as it comes: the map is a ring, colored
# by the angle that it was never told.

# %%
# %matplotlib inline
import torch

from gp_ensembles.gplvm import ie_gplvm
from gp_ensembles.plots import plot_embedding

generator = torch.Generator().manual_seed(0)
angle = 2 * torch.pi * torch.rand(300, 1, generator=generator, dtype=torch.float64)
phase = torch.linspace(0, 5, 10, dtype=torch.float64)
speed = torch.tensor([1, 1, 1, 1, 1, 1, 2, 2, 2, 2], dtype=torch.float64)
rows = (speed * angle + phase).sin() + 0.05 * torch.randn(300, 10, generator=generator, dtype=torch.float64)

model = ie_gplvm(num_outputs=10, generator=generator)
first = model.start(rows[:100])
seen = model.update(rows[100:], block_size=50)
places = torch.cat([first.by_expert, seen.by_expert], dim=1)[model.best_expert]

# %%
plot_embedding(places, angle.flatten().rad2deg(), label_name="hidden angle, degrees", title="300 rows of ten sensors")
