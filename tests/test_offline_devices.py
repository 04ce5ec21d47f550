"""The papers' offline tools on a GPU: knots, marginalized kernels, fusions and a model for BoTorch, as on the host."""

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gp_ensembles.bo import EnsembleModel
from gp_ensembles.papers import fusion
from gp_ensembles.papers.quadrature import Budget, RegressionProblem, marginalize
from gp_ensembles.papers.quadrature.prior import default_prior
from gp_ensembles.papers.sparse import GreedyBlocks, select_knots


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def table(num_rows: int, device: str) -> tuple[Tensor, Tensor]:
    """Rows of one input, of two waves."""
    generator = torch.Generator().manual_seed(3)
    X = 6 * torch.rand(num_rows, 1, generator=generator, dtype=torch.float64)
    y = (2 * X[:, 0]).sin() + 0.1 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    return X.to(device), y.to(device)


def knots(device: str) -> list[Tensor]:
    X, y = table(30, device)
    strategy = GreedyBlocks(max_knots=3, subset_size=10, polish_iterations=2, fit_iterations=3)
    found = select_knots(X, y, ScaleKernel(RBFKernel()), strategy=strategy, generator=seeded())
    predicted = found.predict(X[:7])
    return [found.knots, predicted.mean, predicted.variance]


def marginalized(device: str) -> list[Tensor]:
    X, y = table(16, device)
    problem = RegressionProblem(X, y, default_prior(X, y, 1))
    with pytest.warns(UserWarning, match="no evidence is reliable"):
        found = marginalize(problem, Budget(evaluations=8, draws=40), generator=seeded())
    model = found.model()
    with torch.no_grad():
        posterior = model.posterior(X[:5].unsqueeze(-2))
        return [posterior.mean, posterior.variance, found.predict(X[:5]).variance]


def fused(kind: type[fusion.BHS] | type[fusion.PBHS], device: str) -> list[Tensor]:
    X, y = table(40, device)
    mean = torch.stack([y - 0.3, X[:, 0].cos()])
    experts = fusion.ExpertPredictions(mean, torch.full_like(mean, 0.1), torch.full_like(mean, 0.01))
    kernel = ScaleKernel(RBFKernel()).double().to(device)
    prior = fusion.FourierPrior.from_kernel(kernel, 1, 6, generator=seeded())
    model, some = kind(X, y, experts, prior), fusion.ExpertPredictions(*(part[:, :5] for part in experts))
    found, drawn = (fusion.fit_fusion(model, inference, generator=seeded()) for inference in (fusion.MAP(), None))
    predicted = found.predict(X[:5], some)
    fixed = fusion.fuse(experts, 0.0, space="y")
    # Draws from Laplace's approximation depend on the signs of eigenvectors, which are each library's own.
    weights = drawn.expert_weights(X[:5]).mean
    numbers = [found.expert_weights(X[:5]).mean, predicted.log_prob(y[:5]), predicted.cdf(y[:5]), fixed.log_prob(y)]
    assert bool(weights.isfinite().all())
    return numbers


def of_botorch(device: str) -> list[Tensor]:
    X, y = table(20, device)
    model = EnsembleModel(X / 6, y.unsqueeze(-1), generator=seeded())
    acquisition = LogExpectedImprovement(model, best_f=y.max())
    return [acquisition(X[:5].unsqueeze(-2) / 6).detach(), model.posterior(X[:4] / 6).mean.detach()]


TOOLS = {
    "knots": knots,
    "marginalized kernels": marginalized,
    "BHS": lambda device: fused(fusion.BHS, device),
    "PBHS": lambda device: fused(fusion.PBHS, device),
    "BoTorch": of_botorch,
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n == "BHS" else ()) for n in TOOLS])
def test_numbers_are_those_of_the_host(name, gpu):
    expected = TOOLS[name]("cpu")
    with gpu.here():
        found = TOOLS[name]("cuda")
        for there, here in zip(found, expected, strict=True):
            assert there.is_cuda
            torch.testing.assert_close(there.cpu(), here, **gpu.close(rtol=1e-9, atol=1e-9))
