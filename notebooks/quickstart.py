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
# # Quick start
#
# A stream arrives row by row. At every row an ensemble of Bayesian basis expansions predicts the target before it is
# revealed, quantifies its uncertainty, learns the target, and reweights its experts. This notebook does that on a real
# stream and on a synthetic one with known truth. It runs in seconds on one thread.

# %%
# %matplotlib inline
from dataclasses import replace

import torch

import gp_ensembles as gpe
from gp_ensembles import data, metrics, plots
from gp_ensembles.ensembles.bases import (
    FourierBasis,
    HilbertBasis,
    LinearBasis,
    RadialBasis,
)

# the models work on small matrices: two threads are often slower than one
torch.set_num_threads(1)

# %% [markdown]
# ## A real stream
#
# A president's daily approval, from five pollsters' figures (the data come with the package `river`). Yesterday's
# value is known when today's is predicted, so it may be an input, too; without it "the same as yesterday" is hard to
# beat.

# %%
table = data.load("trump_approval")
X, y = torch.cat([table.X[1:], table.y[:-1].unsqueeze(-1)], dim=1), table.y[1:]
names = (*table.feature_names, "yesterday")
X.shape, names

# %% [markdown]
# The first 200 rows set scales and hyperparameters. The preset `e_doebe` pairs static experts with counterparts whose
# weights follow a random walk; each pair exchanges weight as the stream changes.

# %%
bases = (LinearBasis(), HilbertBasis(), FourierBasis(), RadialBasis())
config = gpe.StreamConfig(replace(gpe.e_doebe, bases=bases), warmup=200)
model = gpe.OnlineModel(config, names).fit(X[:200], y[:200])
len(model.names), model.names[:3]

# %% [markdown]
# ## Predict, then learn
#
# `observe` predicts each row before it learns it. It accepts any number of rows: one call with 800 rows gives the
# same results as 800 calls with one.

# %%
X_later, y_later = X[200:], y[200:]
predictions = model.observe(X_later, y_later)
previous = y[199:-1]
step = y[:200].diff().square().mean()
naive = torch.distributions.Normal(previous, step.sqrt())
{
    "log score, ensemble": metrics.log_score(predictions.log_prob, y_later).item(),
    "log score, previous value": metrics.log_score(
        naive.log_prob(y_later), y_later
    ).item(),
    "nMSE, ensemble": metrics.nmse(predictions.mean, y_later).item(),
    "nMSE, previous value": metrics.nmse(previous, y_later).item(),
}

# %%
lower, upper = predictions.distribution.quantile(
    torch.tensor([[0.05], [0.95]], dtype=torch.float64)
)
plots.plot_bands(
    y_later, predictions.mean, lower, upper, target_name="approval, %", first_row=200
)

# %%
plots.plot_weights(predictions.log_weights, model.names, first_row=200)

# %% [markdown]
# Are the uncertainties calibrated? If so, the position of a target in its predictive distribution is uniform.

# %%
plots.plot_calibration(predictions.distribution.cdf(y_later))

# %% [markdown]
# ## Predict without learning
#
# `predict` gives the whole mixture: mean, standard deviation, quantiles, densities, samples.

# %%
ahead = model.predict(X[-3:])
(
    ahead.mean,
    ahead.stddev,
    ahead.quantile(0.9),
    ahead.sample(5, generator=torch.Generator().manual_seed(1)).shape,
)

# %% [markdown]
# ## Save and load
#
# A file holds everything: stored rows, scales, hyperparameters, posteriors, weights. It is loaded as data; no code in
# it is run.

# %%
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    model.save(Path(folder) / "model.pt")
    again = gpe.OnlineModel.load(Path(folder) / "model.pt")
torch.equal(again.predict(X[-3:]).mean, ahead.mean)

# %% [markdown]
# ## Drift, jumps and gaps
#
# A sensor whose gain drifts, whose offset jumps at row 900, and whose reference is missing from row 1200 to 1280.
# Missing targets are NaN: they are predicted and not learned.

# %%
sensor = data.drifting_sensor(
    1600, jump_at=900, gap=(1200, 1280), generator=torch.Generator().manual_seed(0)
).table
few = (LinearBasis(), FourierBasis())
static, moving = (
    gpe.OnlineModel(
        gpe.StreamConfig(replace(preset, bases=few), warmup=300)
    ).observe(sensor.X, sensor.y)
    for preset in (gpe.oebe, gpe.e_doebe)
)
{
    "static, log score": static.log_prob.nanmean().item(),
    "static and dynamic, log score": moving.log_prob.nanmean().item(),
}

# %%
plots.plot_score(
    {"static and dynamic": moving.log_prob, "static": static.log_prob}, first_row=300
)

# %% [markdown]
# The same from a shell, on your own CSV file: `gp-ensembles stream DATA.csv --target y --out out/run`. The README lists
# the other interfaces: scikit-learn, river, pure functions with gradients.
