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
# # Local maxima and plateaus of the evidence
#
# The evidence of forty rows has a peak, a wave with little noise, and a plateau, a slow line with a lot of noise. A
# search that starts on the plateau may stay there. That is why ensembles are fitted from several starting points.

# %%
# %matplotlib inline
import torch
from gpytorch.kernels import RBFKernel

from gp_ensembles.experts import GaussianExpert, fit_empirical_bayes
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.plots.canvas import ALARM, INK, label, new_figure

generator = torch.Generator().manual_seed(0)
X = torch.rand(40, 1, generator=generator, dtype=torch.float64)
y = (12 * X[:, 0]).sin() + 0.5 * torch.randn(
    40, generator=generator, dtype=torch.float64
)


def expert_at(lengthscale, noise):
    kernel = RBFKernel().double()
    kernel.lengthscale = lengthscale
    draws = torch.Generator().manual_seed(1)
    expert = GaussianExpert(
        RandomFourierFeatures.from_kernel(kernel, 1, 200, generator=draws)
    )
    expert.likelihood.noise = noise
    return expert, kernel


scales, noises = (
    torch.logspace(low, high, 32, dtype=torch.float64)
    for low, high in ((-1.6, 0.8), (-1.5, 0.5))
)
with torch.no_grad():
    height = torch.tensor(
        [
            [
                expert_at(scale, noise)[0].log_evidence(X, y).item()
                for scale in scales
            ]
            for noise in noises
        ]
    )
routes = []
for start in ((0.05, 0.1), (0.3, 0.1), (2.0, 1.0), (5.0, 0.3)):
    expert, kernel = expert_at(*start)
    fit = fit_empirical_bayes(expert, X, y)
    end = (kernel.lengthscale.item(), expert.likelihood.noise.item())
    routes.append((start, end))
    print(
        f"from length scale {start[0]}: to {end[0]:.3f}, noise {end[1]:.2f},",
        f"log evidence {fit.log_evidence.item():.1f}",
    )

# %%
figure, (axis,) = new_figure(1, 1, 7.0, 4.2)
levels = torch.linspace(height.max().item() - 30, height.max().item(), 21)
shade = axis.contourf(
    scales, noises, height, levels=levels, cmap="viridis", extend="min"
)
label(
    axis,
    "log evidence; lines lead from the start of a search to its end",
    "length scale",
    "noise variance",
)
axis.set_xscale("log")
axis.set_yscale("log")
for start, end in routes:
    axis.plot(*zip(start, end, strict=True), color="white", linewidth=1.2)
    axis.plot(
        *start,
        "o",
        color=INK,
        markersize=6,
        markeredgecolor="white",
        label="start" if start[0] == 0.05 else None,
    )
    axis.plot(
        *end,
        "X",
        color=ALARM,
        markersize=9,
        markeredgecolor="white",
        label="end" if start[0] == 0.05 else None,
    )
axis.set_xlim(scales[0].item(), scales[-1].item())
axis.set_ylim(noises[0].item(), noises[-1].item())
figure.colorbar(shade, ax=axis, label="nats", format="%.0f")
figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
figure
