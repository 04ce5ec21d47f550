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
# # Train on a GPU, or without one
#
# A large ensemble, `wide`, learns a table in calls of a thousand rows and saves a file to resume from after each.
# On a GPU all 2 016 experts run, and the computation for a block of rows is recorded once as a CUDA graph and replayed.
# Without a GPU the same code runs on the CPU, with fewer experts.

# %%
# %matplotlib inline
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from tqdm import tqdm

import gp_ensembles as gpe
from gp_ensembles.meta_learners import FixedShare
from gp_ensembles.plots.canvas import SERIES, label, new_figure

device = "cuda" if torch.cuda.is_available() else "cpu"
samples = 21 if device == "cuda" else 2  # draws of the hyperparameters
walks = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1)
wide = replace(
    gpe.oebe,
    name="wide",
    bases=tuple(
        gpe.bases.FourierBasis(40, nu=nu, starts=(0.1, 0.3, 1.0, 3.0))
        for nu in (float("inf"), 1.5, 0.5)
    ),
    random_walk_variances=walks if device == "cuda" else walks[2:5:2],
    rule=FixedShare(),
    fit_settings=replace(gpe.oebe.fit_settings, num_samples=samples),
)

generator = torch.Generator().manual_seed(0)
num_rows = 20_000 if device == "cuda" else 4_000
X = torch.rand(num_rows, 3, generator=generator, dtype=torch.float64)
turn = torch.arange(num_rows, dtype=torch.float64) / num_rows
y = (6 * X[:, 0] + 4 * turn).sin() + X[:, 1] * X[:, 2]
y = y + 0.1 * torch.randn(num_rows, generator=generator, dtype=torch.float64)

# %% [markdown]
# Rows may come from any device; scales, states and predictions stay on the device of the model. Double precision is the
# default, and data center GPUs are as fast in it.

# %%
config = gpe.StreamConfig(wide, warmup=500, device=device)
file = Path(tempfile.mkdtemp()) / "wide.pt"
model = gpe.OnlineModel(config).fit(X[:500], y[:500])
began, scores = time.perf_counter(), []
for start in tqdm(range(500, num_rows, 1000), disable=None):
    rows = slice(start, start + 1000)
    scores.append(model.observe(X[rows], y[rows]).log_prob)
    model.save(file)
    if start == 1500:  # as after a crash
        model = gpe.OnlineModel.load(file, device=device)
pace = (num_rows - 500) / (time.perf_counter() - began)
print(f"{len(model.names)} experts on {device}: {pace:.0f} rows per second")
if device == "cuda":
    print(model.online.why_eager or "blocks are recorded")

# %%
score = torch.cat(scores).cpu()
figure, (axis,) = new_figure(1, 1, 7.5, 3.8)
mean = score.unfold(0, 200, 1).mean(-1)
axis.plot(range(699, 699 + len(mean)), mean, color=SERIES[0])
label(axis, "log score, mean of the last 200 rows", "row", "nats per row")
figure

# %% [markdown]
# The same from a shell, with a progress bar, a checkpoint every minute and `gp-ensembles resume` after a crash:
#
# ```console
# gp-ensembles stream table.csv --target y --config configs/wide.yaml \
#     --device cuda --checkpoint_seconds 60 --out out/wide
# ```
#
# To distribute many series over several GPUs by `torchrun`: `examples/series_on_devices.py`.
