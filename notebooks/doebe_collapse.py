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
# # A paper in code: why an average collapses, and how E-DOEBE prevents it
#
# A small version of experiment 2 of Waxman and Djurić (2024): a static and a dynamic expert, and a stream that is
# first static and then drifts. If they are averaged by Bayes' rule, with weights below 1e-16 set to zero as in the
# papers, only the static expert is left when the drift begins. E-DOEBE lets each expert pass a little weight to its
# counterpart at every row.

# %%
# %matplotlib inline
from dataclasses import replace

import torch

import gp_ensembles as gpe
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.plots.canvas import FAINT, SERIES, label, new_figure

generator = torch.Generator().manual_seed(0)
num_rows, turn = 3000, 1500
X = 2 * torch.rand(num_rows, 1, generator=generator, dtype=torch.float64)
phase = (torch.arange(num_rows, dtype=torch.float64) - turn).clamp_min(0) / 150
noise = 0.2 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
y = (4 * X[:, 0] + phase).sin() + noise

# %% [markdown]
# ## Two experts, three rules
#
# Both experts have the same Hilbert-space features (equation 21). The weights of the dynamic one follow a random walk,
# equation 26. Both papers set `prune_below` to 1e-16. Without it, Bayes' rule keeps the losing expert at a log
# weight of minus a few hundred nats, from which it can recover.

# %%
two = replace(
    gpe.e_doebe,
    bases=(gpe.bases.HilbertBasis(starts=(0.7,)),),
    random_walk_variances=(1e-3,),
    fit_settings=gpe.light.fit_settings,
)
rules = {
    "Bayes' rule, pruned at 1e-16": BayesianModelAveraging(prune_below=1e-16),
    "Bayes' rule": BayesianModelAveraging(),
    "E-DOEBE": two.rule,
}
runs = {
    name: gpe.OnlineModel(
        gpe.StreamConfig(replace(two, rule=rule), warmup=250)
    ).observe(X, y)
    for name, rule in rules.items()
}
for name, run in runs.items():
    before, after = run.log_prob[: turn - 250], run.log_prob[turn - 250 :]
    print(f"{name}: {before.mean():.2f}, drifting {after.mean():.2f} nats per row")

# %%
figure, (weights, scores) = new_figure(1, 2, 10, 3.8)
for color, (name, run) in zip(SERIES, runs.items(), strict=False):
    rows = range(250, num_rows)
    weights.plot(rows, run.log_weights[-1].exp(), color=color, label=name)
    scores.plot(
        range(349, num_rows), run.log_prob.unfold(0, 100, 1).mean(-1), color=color
    )
for axis in (weights, scores):
    axis.axvline(turn, color=FAINT, linewidth=0.8, linestyle="--")
label(weights, "weight of the dynamic expert; drift begins at the dashes", "row", "")
label(scores, "log score, mean of the last 100 rows", "row", "nats per row")
figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
figure

# %% [markdown]
# ## At the paper's size
#
# `python -m studies doebe experiment-2` runs the paper's experiment, `table-2-changes` separates the effects of the
# code and the data, and the page on the paper shows every number next to the printed one.
