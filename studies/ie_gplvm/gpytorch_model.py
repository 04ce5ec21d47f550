"""GPyTorch's Bayesian latent variable model, fitted to all rows at once as in GPyTorch's documentation.

Titsias and Lawrence (2010) with stochastic variational inference (Lalchand, Ravuri and Lawrence 2022): a Gaussian for
the place of every row, inducing points for every column, Adam on minibatches of rows.
"""

from collections.abc import Callable

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import VariationalELBO
from gpytorch.models.gplvm import BayesianGPLVM, VariationalLatentVariable
from gpytorch.priors import NormalPrior
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from torch import Tensor

from gp_ensembles.papers.gplvm.first_rows import principal_components

NUM_INDUCING = 25
LEARNING_RATE = 0.01
MINIBATCH = 100


class _LatentModel(BayesianGPLVM):  # type: ignore[misc]  # GPyTorch has no types
    """A process for every column of the rows, over places that the columns share."""

    def __init__(self, start: Tensor, num_outputs: int) -> None:
        num_rows, num_latent = start.shape
        columns = torch.Size([num_outputs])
        inducing = torch.randn(num_outputs, NUM_INDUCING, num_latent, dtype=start.dtype, device=start.device)
        values = CholeskyVariationalDistribution(NUM_INDUCING, batch_shape=columns)
        strategy = VariationalStrategy(self, inducing, values, learn_inducing_locations=True)
        prior = NormalPrior(torch.zeros_like(start), torch.ones_like(start))
        places = VariationalLatentVariable(num_rows, num_outputs, num_latent, start, prior)
        super().__init__(places, strategy)
        self.mean_module = ZeroMean(ard_num_dims=num_latent)
        self.covar_module = ScaleKernel(RBFKernel(ard_num_dims=num_latent))

    def forward(self, X: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))


def gpytorch_embedding(
    Y: Tensor,
    iterations: int,
    *,
    num_latent: int = 2,
    seed: int = 0,
    every: int = 100,
    watch: Callable[[int, Tensor], bool] | None = None,
) -> Tensor:
    """Where the rows lie: means of their variational distributions, started at principal components.

    Rows are centered and divided by their root mean square, as the ensemble does. 25 inducing points, Adam with a rate
    of 0.01 and minibatches of 100 rows are those of GPyTorch's example; numbers are of single precision, as there.

    Args:
        Y: Rows, shape (N, D).
        iterations: Steps of Adam.
        num_latent: Number of latent inputs d.
        seed: Of inducing points, minibatches and draws; torch's global source is left as it was.
        every: How many steps there are between two calls of ``watch``.
        watch: Is shown the number of steps done and the means there, shape (N, d); fitting ends when it says ``True``.

    Returns:
        The means, shape (N, d), float64.

    Raises:
        ValueError: If a number is not positive, or fewer than d directions vary.

    Example:
        >>> Y = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
        >>> gpytorch_embedding(Y, 4, every=2, watch=lambda iteration, mean: iteration == 2).shape
        torch.Size([12, 2])
    """
    if min(iterations, num_latent, every) < 1:
        raise ValueError(f"iterations, num_latent and every must be positive, got {iterations}, {num_latent}, {every}")
    scores, mean = principal_components(Y, num_latent)
    centered = Y - mean
    rows = (centered / centered.square().mean().sqrt()).float()
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
        model = _LatentModel(scores.float(), rows.shape[1])
        likelihood = GaussianLikelihood(batch_shape=torch.Size([rows.shape[1]]))
        objective = VariationalELBO(likelihood, model, num_data=len(rows))
        optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=LEARNING_RATE)
        for iteration in range(1, iterations + 1):
            batch = torch.randperm(len(rows), device="cpu")[:MINIBATCH]
            optimizer.zero_grad()
            places = model.sample_latent_variable()
            loss = -objective(model(places[batch]), rows[batch].T).sum()
            loss.backward()
            optimizer.step()
            if watch is not None and iteration % every == 0 and watch(iteration, model.X.q_mu.detach().to(Y)):
                break
    found: Tensor = model.X.q_mu.detach().to(Y)
    return found
