"""What tests of knots share: golden files, a kernel by its definition, rows, and the parts of models."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import torch
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gp_ensembles.papers.sparse.collapsed import VFE, Projection, log_density, project
from gp_ensembles.papers.sparse.fitting import Coordinates

GOLDEN = Path(__file__).parents[2] / "golden"
KERNELS: dict[str, Callable[[], Kernel]] = {
    "rbf": lambda: ScaleKernel(RBFKernel()),
    "matern ard": lambda: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2)),
    "periodic times rbf": lambda: ScaleKernel(PeriodicKernel() * RBFKernel()),
    "linear and rbf": lambda: LinearKernel() + ScaleKernel(RBFKernel(active_dims=[1])),
    "no scale": lambda: MaternKernel(nu=1.5),
}
CASES = ["iso2d", "boston", "bostonard"]  # golden files of fixed hyperparameters


def name_of(part: object) -> str:
    return part if isinstance(part, str) else getattr(part, "name", type(part).__name__)


def value_of(tensor: Tensor) -> float:
    return float(tensor.detach())


def read_golden(name: str) -> dict[str, Tensor]:
    with np.load(GOLDEN / f"knots_{name}.npz") as file:
        return {key: torch.as_tensor(file[key]) for key in file.files}


@dataclass(frozen=True)
class Problem:
    """Rows, knots and a squared exponential kernel by its definition: a matrix of differences and no shortcut."""

    X: Tensor
    y: Tensor
    Z: Tensor
    scale: Tensor
    lengthscale: Tensor
    noise: Tensor
    delta: Tensor

    @classmethod
    def random(cls, seed: int, num_rows: int = 15, num_knots: int = 4, nugget: float = 1e-8) -> "Problem":
        draws = np.random.default_rng(seed)
        X, Z = (torch.as_tensor(draws.uniform(-2.0, 2.0, size=(count, 2))) for count in (num_rows, num_knots))
        y = torch.as_tensor(draws.normal(size=num_rows) * draws.uniform(0.3, 3.0))
        scale, lengthscale, deviation = torch.as_tensor(draws.uniform(0.3, 2.0, size=3))
        return cls(X, y, Z, scale, lengthscale, deviation**2, nugget * scale**2)

    @classmethod
    def golden(cls, data: dict[str, Tensor]) -> "Problem":
        noise, residual = data["tau"] ** 2, data["y"] - data["mean"]
        return cls(data["X"], residual, data["Z"], data["sigma"], data["lengthscale"], noise, data["delta"])

    def covariance(self, first: Tensor, second: Tensor) -> Tensor:
        differences = (first.unsqueeze(-2) - second.unsqueeze(-3)) / self.lengthscale
        return self.scale**2 * (-0.5 * differences.square().sum(-1)).exp()

    def prior(self, X: Tensor) -> Tensor:
        return (self.scale**2 + self.delta).expand(len(X))

    def project(self, knots: Tensor | None = None) -> Projection:
        Z = self.Z if knots is None else knots
        own = self.covariance(Z, Z) + self.delta * torch.eye(len(Z), dtype=Z.dtype)
        return project(own, self.covariance(Z, self.X), self.prior(self.X), self.y, self.noise)


class CodedVFE:
    """VFE as published code has it: the nugget stands in the noise of the density, but not in that of the trace."""

    has_trace = False  # no gains in closed form
    predictive = VFE.predictive

    def __init__(self, nugget: Tensor | float) -> None:
        self.nugget = nugget

    def objective(self, projection: Projection) -> Tensor:
        return log_density(projection, self.diagonal(projection)) - self.penalty(projection)

    def penalty(self, projection: Projection) -> Tensor:
        return (projection.prior - projection.explained).sum() / (2.0 * projection.noise)

    def diagonal(self, projection: Projection) -> Tensor:
        return (projection.noise + self.nugget).expand_as(projection.residual)


def rows(num_rows: int = 40, seed: int = 0, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    draws = np.random.default_rng(seed)
    X = torch.as_tensor(draws.uniform(size=(num_rows, 2)))
    return X, torch.sin(6.0 * X[:, 0]) + X[:, 1].square() + noise * torch.as_tensor(draws.normal(size=num_rows)) + 3.0


def noise_of(variance: float | Tensor) -> GaussianLikelihood:
    likelihood = GaussianLikelihood().double()
    likelihood.noise = variance
    return likelihood


def isotropic(outputscale: float, lengthscale: float, noise: float) -> tuple[ScaleKernel, GaussianLikelihood]:
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = outputscale, lengthscale
    return kernel, noise_of(noise)


def slopes(coordinates: Coordinates, point: Tensor) -> Tensor:
    """Central differences of the objective at a point (P,)."""
    rises = [
        coordinates.evaluate(point + step)[0] - coordinates.evaluate(point - step)[0]
        for step in 1e-5 * torch.eye(len(point), dtype=point.dtype)
    ]
    return torch.tensor(rises, dtype=point.dtype) / 2e-5


def fail_at(monkeypatch, owners, name, fails, error):
    """A function of all owners raises an error at every call whose number, from one, is among those that fail."""
    original, calls = getattr(owners[0], name), count(1)

    def call(*arguments, **settings):
        if next(calls) in fails:
            raise error
        return original(*arguments, **settings)

    for owner in owners:
        monkeypatch.setattr(owner, name, call)
