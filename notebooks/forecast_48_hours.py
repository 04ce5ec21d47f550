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
# # Two days ahead
#
# A joint forecast of the next 48 hours: bands for each hour, and sample paths that preserve the dependence between
# hours. Paths answer questions that bands cannot, such as the peak of the next day.

# %%
# %matplotlib inline
import torch

import gp_ensembles as gpe
from gp_ensembles.ensembles.presets import forecaster
from gp_ensembles.plots.canvas import ALARM
from gp_ensembles.plots.stream import plot_forecast

hours = torch.arange(24 * 21, dtype=torch.float64)
generator = torch.Generator().manual_seed(0)
noise = torch.zeros(len(hours), dtype=torch.float64)
for hour in range(1, len(hours)):
    noise[hour] = (
        0.8 * noise[hour - 1] + torch.randn((), generator=generator).double()
    )
load = 100 + 0.03 * hours + 10 * (2 * torch.pi * hours / 24).sin() + noise

known = len(hours) - 48
model = gpe.OnlineModel(gpe.StreamConfig(forecaster, warmup=240), ["hour"])
model.observe(hours[:known, None], load[:known])
forecast = model.forecast(hours[known:, None], generator=generator)
peaks = forecast.paths[:, :24].max(1).values
print(
    f"the peak of the next day: {peaks.median():.1f} MW,",
    f"nine times of ten below {peaks.quantile(0.9):.1f} MW",
)

# %%
quantiles = forecast.quantile([0.05, 0.25, 0.5, 0.75, 0.95])
figure = plot_forecast(
    load[known - 72 : known],
    quantiles,
    forecast.paths,
    target_name="load, MW",
    x_name="hour",
)
figure.axes[0].plot(
    range(1, 49), load[known:], ".", color=ALARM, markersize=5, label="observed"
)
figure.legends[0].remove()
figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
figure
