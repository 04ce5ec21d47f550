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
# # VFE and FITC
#
# A sparse Gaussian process sees N rows through K knots. What is it told to maximize? VFE is a lower bound of the log
# evidence, FITC the evidence of another model, which takes what the knots leave open for noise that differs from row
# to row. Here both choose knots for the same rows.

# %%
# %matplotlib inline
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles import plots
from gp_ensembles.plots.canvas import ALARM, FAINT, INK, MEAN, label, new_figure
from gp_ensembles.sparse import DIC, FITC, VFE, Simultaneous, SparseGP, fit_sparse, kmeans_knots, select_knots

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(2)

# %% [markdown]
# ## Where a ninth knot would help
#
# A function that is smooth on the left and wiggly on the right, with noise of variance 0.0225. Eight knots at the
# centers of k-means are spread like the rows, not like the function. Yet a ninth helps most on the left: the kernel
# has one length scale for both sides, and on the left the rows are on average farther from their nearest knot.

# %%
x = 10.0 * torch.rand(120, generator=generator, dtype=torch.float64).sort().values
X = x.unsqueeze(-1)  # inputs are (N, D)
truth = (0.5 * x).sin() + 0.6 * (2.4 * x).sin() * torch.sigmoid(2.0 * (x - 5.0))
y = truth + 0.15 * torch.randn(120, generator=generator, dtype=torch.float64)

model = SparseGP(X, y, kmeans_knots(X, 8, generator=generator), ScaleKernel(RBFKernel()))
fit_sparse(model)  # hyperparameters; the knots stay
places = torch.linspace(0.0, 10.0, 61, dtype=torch.float64)


@torch.no_grad()
def with_a_knot(approximation):
    knots = [torch.cat([model.knots, place.reshape(1, 1)]) for place in places]
    return torch.stack([approximation.objective(model.projection(Z)) for Z in knots])


curves = {"VFE": with_a_knot(VFE()), "FITC": with_a_knot(FITC())}
chosen = {name: places[values.argmax()].item() for name, values in curves.items()}
eight = {}
for approximation in (VFE(), FITC()):
    name = type(approximation).__name__
    eight[name] = approximation.objective(model.projection()).item()
    least, most = curves[name].aminmax()
    print(f"{name:4} with eight knots {eight[name]:6.2f}, with nine from {least:6.2f} to {most:6.2f}")
length_scale = model.covar_module.base_kernel.lengthscale.item()
away = (X - model.knots.T).abs().amin(1)  # of each row, to its nearest knot
left, right = away[x < 5].mean().item(), away[x >= 5].mean().item()
print(f"length scale {length_scale:.2f}; to the nearest knot {left:.2f} on the left, {right:.2f} on the right")
print(f"the log evidence with these hyperparameters is at most {model.upper_bound().item():.2f}")
figure, axes = new_figure(3, 1, 9.0, 7.8)
axes[0].plot(x, y, "o", markersize=3, color=FAINT)
label(axes[0], "the rows", "", "y")
for axis, (name, values) in zip(axes[1:], curves.items(), strict=True):
    axis.plot(places, values, color=MEAN)
    axis.axhline(eight[name], color=INK, linewidth=1.0, linestyle="--")
    axis.axvline(chosen[name], color=ALARM, linewidth=1.2, linestyle=":")
    label(axis, f"{name} with a further knot; dotted, the best place", "", "nats")
for axis in axes:
    for knot in model.knots.flatten().tolist():
        axis.axvline(knot, color=INK, linewidth=0.6, alpha=0.5)
figure

# %% [markdown]
# The thin lines stand at the eight knots, the dashes at the objective without a ninth. A knot more never lowers VFE,
# wherever it is put. It can lower FITC: around 6.4 the curve dips below the dashes, if only by a tenth of a nat.

# %% [markdown]
# ## Twelve knots that move
#
# Now twelve knots and all hyperparameters move together. FITC needs less of the common noise than there is, puts
# knots next to one another, and reports a higher objective, which is no evidence for it. VFE has no such way out.

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
    print(
        f"{name:4} noise {noise:.4f}, objective {fitted.history[-1].objective:.2f}, closest knots {nearest:.4f} apart"
    )

# %%
grid = torch.linspace(0.0, 10.0, 201, dtype=torch.float64).unsqueeze(-1)
with torch.no_grad():
    posterior = models["FITC"].posterior(grid.unsqueeze(-2), observation_noise=True)  # a batch of single points
    mean, half = posterior.mean.flatten(), 1.645 * posterior.variance.sqrt().flatten()
fit = plots.KnotFit(models["FITC"].knots, mean, mean - half, mean + half)
plots.plot_knots(grid, fit, seen=(X, y), title="FITC, 12 knots, all moved")

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
# How many knots there should be has [a notebook of its own](how_many_knots.ipynb), and so has [how they are
# moved](knots_by_optimization.ipynb).
