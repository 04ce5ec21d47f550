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
# # Dates and categories in a data frame
#
# A data frame can be passed as it is, with dates, text and missing values, and the model reports how it encoded each
# column. The picture shows two days of unseen data, in the units of the table.

# %%
# %matplotlib inline
import numpy as np
import pandas as pd

import gp_ensembles as gpe
from gp_ensembles.plots.canvas import BAND, INK, MEAN, new_figure

rng = np.random.default_rng(0)
time = pd.date_range("2026-03-02", periods=24 * 14, freq="h")
weather = rng.choice(["sun", "rain", "snow"], size=len(time), p=[0.6, 0.3, 0.1])
wind = rng.gamma(2.0, 2.0, len(time))
X = pd.DataFrame(
    {
        "time": time,
        "weather": weather,
        "wind": np.where(rng.random(len(time)) < 0.05, np.nan, wind),
    }
)
heating = pd.Series(weather).map({"sun": 0.0, "rain": 4.0, "snow": 9.0}).to_numpy()
load = (
    50
    + 10 * np.sin(2 * np.pi * (time.hour - 6) / 24)
    + heating
    + 0.5 * wind
    + rng.normal(0, 1, len(time))
)

model = gpe.OnlineRegressor(random_state=0).fit(X[:-48], load[:-48])
mean = model.predict(X[-48:])
lower, upper = model.predict_quantiles(X[-48:], [0.05, 0.95])
print(*model.model_.feature_names, sep="\n")

# %%
figure, (axis,) = new_figure(1, 1, 7.5, 3.8)
axis.fill_between(
    time[-48:], lower, upper, color=BAND, alpha=0.7, linewidth=0, label="90 % band"
)
axis.plot(time[-48:], mean, color=MEAN, label="mean")
axis.plot(time[-48:], load[-48:], "o", color=INK, markersize=3.5, label="observed")
axis.set_title("load of two days not seen before", loc="left", fontsize=10)
axis.set_ylabel("load, MW", fontsize=9)
axis.set_xticks(time[-48::12], [f"{stamp:%d %b\n%H:%M}" for stamp in time[-48::12]])
figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
figure
