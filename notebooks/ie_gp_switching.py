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
# # A paper in code: IE-GP with switching, and its regret
#
# Lu, Karanikolas and Giannakis (2022) weight Gaussian processes with different kernels row by row. IE-GP follows the
# best kernel, SIE-GP a kernel that changes: the weights pass through a Markov chain before each row. Lemma 2
# bounds what SIE-GP can lose to the best sequence of kernels in hindsight.

# %%
# %matplotlib inline
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles.engine import Ensemble, OnlineEnsemble, regret_report
from gp_ensembles.filters import RandomWalk
from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    MarkovSwitching,
    sticky_transition,
)
from gp_ensembles.plots.canvas import FAINT, SERIES, label, new_figure

generator = torch.Generator().manual_seed(0)


def kernel(lengthscale):
    found = ScaleKernel(RBFKernel()).double()
    found.base_kernel.lengthscale, found.outputscale = lengthscale, 1.0
    return found


def draw(kernel, X):
    covariance = kernel(X).add_jitter(1e-6).to_dense().detach()
    root = torch.linalg.cholesky(covariance)
    return root @ torch.randn(len(X), generator=generator, dtype=torch.float64)


# %% [markdown]
# As in the paper's figure 11, the first half of the rows is a draw from one kernel and the second half from another,
# with two experts to match. Here the length scales are 0.1 and 10, and the noise variance is 0.1.

# %%
kernels, T = (kernel(0.1), kernel(10.0)), 800
X = 2 * torch.rand(T, 1, generator=generator, dtype=torch.float64)
f = torch.cat([draw(k, part) for k, part in zip(kernels, X.chunk(2), strict=True)])
y = f + 0.1**0.5 * torch.randn(T, generator=generator, dtype=torch.float64)

switching = MarkovSwitching(sticky_transition(2, stay=0.99))
noise = torch.full((2,), 0.1, dtype=torch.float64)
static = Ensemble.from_kernels(
    kernels, 1, 100, switching, noise=noise, generator=generator
)
moving = [expert.with_transition(RandomWalk(1e-3)) for expert in static.experts]
ensembles = {
    "IE-GP": static.with_experts(
        static.experts, meta_learner=BayesianModelAveraging()
    ),
    "SIE-GP": static,
    "DSIE-GP": static.with_experts(moving),
}
runs = {}
for name, ensemble in ensembles.items():
    runs[name] = OnlineEnsemble(ensemble).observe(X, y)
    print(f"{name}: {runs[name].log_prob.mean():.2f} nats per row")

# %% [markdown]
# Switching alone is not enough here. Every expert learns all rows, so at the change the slow one has learned half a
# stream that does not fit it, and is confident in it; the paper's theorem 2 overlooks this. In DSIE-GP the experts
# forget, too.

# %% [markdown]
# ## Regret to the best sequence, and its bound
#
# Both rules weight the experts that forget. The comparator uses the first kernel up to the change and the second one
# after it. The bound is that of lemma 2 with the term missing in print, $S \log(M - 1)$; it is zero for two
# experts.

# %%
path = torch.arange(T) // (T // 2)
lengths = range(20, T + 1, 20)
rules = {"averaging": BayesianModelAveraging(), "switching": switching}
reports = {
    name: [
        regret_report(rule, runs["DSIE-GP"].experts.log_prob[:, :n], path[:n])
        for n in lengths
    ]
    for name, rule in rules.items()
}

# %%
figure, (weights, regret) = new_figure(1, 2, 10, 3.8)
for color, (name, run) in zip(SERIES, runs.items(), strict=False):
    weights.plot(run.log_weights[1].exp(), color=color, label=name)
for color, (name, found) in zip(SERIES[3:], reports.items(), strict=False):
    lost = [one.switching.regret for one in found]
    regret.plot(lengths, lost, color=color, label=name)
bound = [one.switching.bound for one in reports["switching"]]
regret.plot(
    lengths, bound, color=SERIES[4], linestyle=":", label="bound of switching"
)
for axis in (weights, regret):
    axis.axvline(T // 2, color=FAINT, linewidth=0.8, linestyle="--")
label(
    weights, "weight of the slow kernel, which is right after the dashes", "row", ""
)
label(regret, "regret to the best sequence of kernels", "row", "nats")
figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=9)
figure

# %% [markdown]
# The page on regret runs the worst case of every lemma and theorem of the paper: `python -m studies ie-gp lemma-2`,
# and likewise `lemma-1`, `theorem-1`, `theorem-2`, `figure-10` and `figure-11`.
