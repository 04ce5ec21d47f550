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
# # How many knots, and where?
#
# A Gaussian process of N rows costs O(N³). Seen through K knots it costs O(NK²), and then two questions are open: how
# many knots, and where. Here they are answered from the data: knots are added where they raise a lower bound of the
# log evidence most, until they add nothing. What comes out is a GPyTorch and BoTorch model.

# %%
# %matplotlib inline
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles import data, metrics, plots
from gp_ensembles.sparse import (
    DIC,
    FITC,
    VFE,
    GreedyBlocks,
    OneAtATime,
    RandomSubset,
    Reinitialization,
    Simultaneous,
    SparseGP,
    fit_sparse,
    greedy_variance_knots,
    kmeans_knots,
    select_knots,
)
from gp_ensembles.streaming import Standardizer

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(2)

# %% [markdown]
# ## One input: what a further knot is worth
#
# A function that is smooth on the left and wiggly on the right, with noise of variance 0.0225. Eight knots at the
# centers of k-means are spread like the rows, not like the function.

# %%
x = 10.0 * torch.rand(120, generator=generator, dtype=torch.float64).sort().values
X = x.unsqueeze(-1)  # inputs are (N, D)
truth = (0.5 * x).sin() + 0.6 * (2.4 * x).sin() * torch.sigmoid(2.0 * (x - 5.0))
y = truth + 0.15 * torch.randn(120, generator=generator, dtype=torch.float64)

model = SparseGP(X, y, kmeans_knots(X, 8, generator=generator), ScaleKernel(RBFKernel()))  # VFE, unless said otherwise
before = model.objective().item()
fit_sparse(model)  # hyperparameters; the knots stay
before, model.objective().item(), model.upper_bound().item()

# %% [markdown]
# The last two numbers enclose the log evidence of the exact Gaussian process with these hyperparameters, so further
# knots cannot bring more than their difference. Where would one help? Below, the objective with a ninth knot at each
# place. VFE is a bound that no knot lowers, wherever it is put: the least of its curve is no less than what eight
# knots have. FITC's objective is no bound of anything, and at some places a knot lowers it.

# %%
places = torch.linspace(0.0, 10.0, 201, dtype=torch.float64)


@torch.no_grad()
def with_a_knot(model, approximation):
    knots = [torch.cat([model.knots, place.reshape(1, 1)]) for place in places]
    return torch.stack([approximation.objective(model.projection(Z)) for Z in knots])


curves = {"VFE": with_a_knot(model, VFE()), "FITC": with_a_knot(model, FITC())}
chosen = {name: places[values.argmax()].item() for name, values in curves.items()}
for approximation in (VFE(), FITC()):
    name = type(approximation).__name__
    eight = approximation.objective(model.projection()).item()
    least, most = curves[name].aminmax()
    print(f"{name:4} with eight knots {eight:6.2f}, with nine from {least:6.2f} to {most:6.2f}")
plots.plot_new_knot(places, curves, knots=model.knots, seen=(X, y), chosen=chosen)

# %% [markdown]
# One knot at a time goes like this: a row is proposed, here the best of all, then the new knot and the
# hyperparameters move together.

# %%
proposed = RandomSubset(None).propose(model, generator=generator)
grown = model.with_knots(torch.cat([model.knots, X[proposed.row : proposed.row + 1]]))
refined = grown.with_knots(grown.knots)  # a copy
fit_sparse(refined, knots=slice(8, None))
for name, one in {"before": grown, "after": refined}.items():
    place, noise = one.knots[-1].item(), one.likelihood.noise.item()
    print(f"{name:6} objective {one.objective().item():6.2f}, new knot at {place:.2f}, noise {noise:.4f}")


@torch.no_grad()
def described(model, X):
    # each row on its own: a batch of single points, so that no joint covariance is made
    posterior = model.posterior(X.unsqueeze(-2), observation_noise=True)
    mean, half = posterior.mean.flatten(), 1.645 * posterior.variance.sqrt().flatten()
    return plots.KnotFit(model.knots, mean, mean - half, mean + half)


grid = places.unsqueeze(-1)
plots.plot_refinement(grid, described(grown, grid), described(refined, grid), seen=(X, y))

# %% [markdown]
# ## All of it in one call
#
# The default answers the question of how many with "all of them" where that can be had: up to some thousand rows the
# exact process is no dearer, and a better fit. Kernel, noise and prior mean are chosen and learned if they are not
# given, and `stop_reason` says what was done. `predict` gives distributions of targets, with the tails of the errors
# that rows would have had if they had been left out.

# %%
found = select_knots(X, y, generator=generator)
print(type(found.model).__name__, found.stop_reason)
print(found.predict(grid[:3]).quantile(0.95))
plots.plot_knots(grid, described(found.model, grid), seen=(X, y), title=f"{len(found.knots)} knots")

# %% [markdown]
# Where there are too many rows, or the model is to stay small, knots are chosen. `GreedyBlocks` adds blocks of rows
# that double in size, by exact gains, and refits in between. It stops when a block adds less than a hundredth of a
# nat, or when the bounds are as close as that. How many knots there may be at most is `GreedyBlocks(max_knots=80)`.
#
# ## Two inputs, and a table
#
# Two interlocked bananas (the table travels with the package `river`); the label is taken as a number. For a CSV of
# yours, `data.read_csv("DATA.csv", "y")` gives the same kind of table, and columns are best brought to one scale.

# %%
table = data.load("bananas")
rows = torch.randperm(len(table.y), generator=generator)
train, test = rows[:200], rows[200:]
scale = Standardizer.fit(table.X[train], table.y[train])
plane_X, labels = scale.transform(table.X, table.y)


# %%
def kernel():
    return ScaleKernel(RBFKernel(ard_num_dims=2))


strategy = GreedyBlocks(max_knots=80, tolerance=2.0)  # a knot more is not worth its price below two nats a block
found = select_knots(
    plane_X[train],
    labels[train],
    kernel(),
    strategy=strategy,
    generator=torch.Generator().manual_seed(0),
)
print(f"{len(found.knots)} knots: {found.stop_reason}")
for step in found.history:
    bounds = f"{step.objective:8.1f} to {step.upper_bound:8.1f} nats"
    print(f"{step.action:8} {step.num_knots:4} knots  {bounds}  {step.seconds:5.2f} s")


# %% [markdown]
# The dashes are the upper bound of the log evidence. The hyperparameters change from step to step, and the upper
# bound with them: early it promises far more than there is.


# %%
def growth(found):
    return tuple(
        torch.tensor([getattr(step, column) for step in found.history], dtype=torch.float64)
        for column in ("num_knots", "objective", "upper_bound")
    )


plots.plot_growth({"greedy blocks": growth(found)}, title="bananas")

# %%
sides = torch.linspace(-3.0, 3.2, 60, dtype=torch.float64)
plane = torch.cartesian_prod(sides, sides)
plots.plot_knots(
    plane, described(found.model, plane), seen=(plane_X[train], labels[train]), names=("x1", "x2", "label")
)

# %% [markdown]
# ## Other ways
#
# The paper's algorithm adds one knot at a time (`OneAtATime`, with `RandomSubset` or `BayesianOptimization` as its
# proposal); `Simultaneous` moves all of a given number at once; `Reinitialization` repeats a rule that does not see
# the targets. All have 15 knots at most here, fewer than the bananas got above, and 5 100 hidden rows. Where knots are
# scarce, moving them pays: greedy blocks do it at their end (`polish_iterations`). One at a time ends at the first
# knot that brings nothing; from five first knots, its default, one run in eight or so takes the bananas for noise and
# ends early. `stop_reason` tells.

# %%
ways = {
    "greedy blocks": GreedyBlocks(max_knots=15, polish_iterations=0),
    "and polished": GreedyBlocks(max_knots=15),
    "one at a time": OneAtATime(RandomSubset(), start=8, max_knots=15),
    "simultaneous": Simultaneous(15),
    "greedy variance": Reinitialization(15, greedy_variance_knots),
}


@torch.no_grad()
def scores(model):
    posterior = model.posterior(plane_X[test].unsqueeze(-2), observation_noise=True)
    mean, variance, target = posterior.mean.flatten(), posterior.variance.flatten(), labels[test]
    log_prob = torch.distributions.Normal(mean, variance.sqrt()).log_prob(target)
    return f"SRMSE {metrics.sample_srmse(mean, target):.3f}  MNLP {metrics.median_mnlp(log_prob, target):.3f}"


results = {}
for name, way in ways.items():
    results[name] = select_knots(
        plane_X[train],
        labels[train],
        kernel(),
        strategy=way,
        generator=torch.Generator().manual_seed(0),
    )
    last, scored = results[name].history[-1], scores(results[name].model)
    print(f"{name:16} {last.num_knots} knots  ELBO {last.objective:8.2f}  {last.seconds:4.1f} s  {scored}")
print(results["one at a time"].stop_reason)
plots.plot_growth({name: growth(results[name]) for name in ("greedy blocks", "one at a time")}, title="bananas")

# %% [markdown]
# ## FITC against VFE
#
# The objective is an object, too. Here twelve knots and all hyperparameters move together, on the rows of one input,
# whose noise has the variance 0.0225. FITC takes what the knots leave open for noise that differs from row to row: it
# needs less of the common noise than there is, puts knots next to one another, and reports a higher objective, which
# is no evidence for it. VFE has no such way out.

# %%
models = {}
for approximation in (VFE(), FITC()):
    name = type(approximation).__name__
    fitted = select_knots(
        X,
        y,
        ScaleKernel(RBFKernel()),
        strategy=Simultaneous(12),
        approximation=approximation,
        generator=torch.Generator().manual_seed(0),
    )
    models[name] = fitted.model
    gaps = fitted.knots.flatten().sort().values.diff()
    noise, nearest = fitted.model.likelihood.noise.item(), gaps.min().item()
    print(f"{name}: noise {noise:.4f}, objective {fitted.history[-1].objective:.2f}, closest knots {nearest:.4f} apart")
plots.plot_knots(grid, described(models["FITC"], grid), seen=(X, y), title="FITC, 12 knots, all moved")

# %% [markdown]
# What is predicted depends on the approximation, too. With the same hyperparameters and four knots, the variance of
# the function at 0, 2.5, 5, 7.5 and 10: DIC knows what the knots know, VFE and FITC add what they do not.

# %%
few = models["VFE"].with_knots(models["VFE"].knots[::3])
print("knots at", [round(z, 2) for z in sorted(few.knots.flatten().tolist())])
for approximation in (VFE(), FITC(), DIC()):
    few.approximation = approximation
    with torch.no_grad():
        variance = few.posterior(grid[::50].unsqueeze(-2)).variance.flatten()
    print(f"{type(approximation).__name__:5}", [round(v, 4) for v in variance.tolist()])

# %% [markdown]
# Counts, streams and BoTorch have [a notebook of their own](after_knots.ipynb).
# The paper's models beside the default, on five splits: `python -m studies knots --dataset boston --data FOLDER --out
# out/boston`; its Figures 1 and 2: `--figure 1`.
