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
# # Weight rules and their regret
#
# Three experts take turns at being right, and rules differ in how fast they notice: averaging falls behind by
# hundreds of nats, a fixed share loses a few at each switch. The comparator knows all switches in advance.

# %%
# %matplotlib inline
import torch

from gp_ensembles.engine import regret_report
from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    DynamicModelAveraging,
    FixedShare,
    SoftBayes,
)
from gp_ensembles.metrics import best_switching_path
from gp_ensembles.plots.canvas import FAINT, SERIES, label, new_figure

generator = torch.Generator().manual_seed(0)
# log densities of each target by each expert
log_prob = (
    -0.5 * torch.randn(3, 900, generator=generator, dtype=torch.float64).square()
)
right = torch.tensor([0, 1, 2, 0, 2, 1]).repeat_interleave(150)
# the others are a nat worse
log_prob -= torch.ones(3, 900, dtype=torch.float64).scatter(0, right[None], 0.0)
path, best_log_prob = best_switching_path(log_prob, num_switches=5)
best = best_log_prob.cumsum(0)

rules = (
    BayesianModelAveraging(),
    DynamicModelAveraging(0.95),
    SoftBayes(),
    FixedShare(0.01),
)
lost = {}
for rule in rules:
    lost[type(rule).__name__] = [
        regret_report(rule, log_prob[:, :rows], path[:rows]).switching.regret
        for rows in range(30, 901, 30)
    ]

# %%
figure, (axis,) = new_figure(1, 1, 7.5, 3.8)
for color, (name, values) in zip(SERIES, lost.items(), strict=False):
    axis.plot(range(30, 901, 30), values, color=color, label=name)
for turn in range(150, 900, 150):
    axis.axvline(turn, color=FAINT, linewidth=0.8, linestyle="--")
label(
    axis,
    "lost to the best sequence in hindsight; the best expert changes at dashes",
    "row",
    "regret, nats",
)
figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
figure
