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
# # Square roots in single precision
#
# With tiny noise the covariance form loses its digits in float32, and the square-root form keeps them. The truth is
# the same filter in double precision.

# %%
# %matplotlib inline
import torch

from gp_ensembles.filters import gaussian_state, square_root_state, update_block
from gp_ensembles.plots.canvas import SERIES, label, new_figure

generator = torch.Generator().manual_seed(0)
N, F = 400, 30
x = torch.rand(N, 1, generator=generator, dtype=torch.float64)
Phi = (torch.arange(1, F + 1) * torch.pi * x).sin() * torch.arange(1, F + 1) ** -1.0
y = Phi.sum(-1) + 1e-2 * torch.randn(N, generator=generator, dtype=torch.float64)


def deviations(start, dtype, noise):
    """One-step standard deviations, row after row; ends where a variance is no longer one."""
    state, found, given = start(torch.ones((), dtype=dtype), F), [], torch.tensor(noise, dtype=dtype)
    for first in range(0, N, 8):
        rows = slice(first, first + 8)
        try:
            state, steps = update_block(state, Phi[rows].to(dtype), y[rows].to(dtype), None, given)
        except ArithmeticError as error:  # a failure is an error, never a repair
            print(f"{start.__name__}, noise {noise:g}, row {first}: {error}")
            break
        found.append(steps.variance.double().sqrt())
    return torch.cat(found)


errors = {}
for name, start in {"covariance form": gaussian_state, "square-root form": square_root_state}.items():
    found, truth = (deviations(start, dtype, 1e-6) for dtype in (torch.float32, torch.float64))
    errors[name] = (found / truth[: len(found)] - 1).abs().clamp_min(1e-9)

# %%
figure, (axis,) = new_figure(1, 1, 7.5, 3.6)
for color, (name, error) in zip((SERIES[1], SERIES[0]), errors.items(), strict=True):
    axis.plot(error, ".", markersize=3.5, color=color, label=name)
label(axis, "relative error of the predicted standard deviation, float32", "row", "relative error")
axis.set_yscale("log")
figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9, markerscale=2)
figure
