"""Mean-field variational inference: independent normal distributions."""

import math
import time
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.fusion.base import FusionModel
from gp_ensembles.fusion.inference import (
    InferenceMethod,
    InferenceReport,
    PosteriorDraws,
    issue_cautions,
    without_parameters,
)
from gp_ensembles.fusion.modes import find_modes
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.draws import normal_draws

# Draws behind the reported bound.
_BOUND_DRAWS = 256


@final
@dataclass(frozen=True)
class MeanField(InferenceMethod):
    r"""The product of normal distributions with the largest evidence lower bound.

    .. math:: \max_{m, s} \; E_{\theta \sim N(m, \mathrm{diag}(s^2))}[\log p(\theta, y)] + \sum_p \log s_p
              + \tfrac P2 \log 2 \pi e

    by stochastic gradients of reparametrized draws (Kucukelbir et al., 2017) from the best of several modes. It has
    no correlations, and is the poorest method here for mixtures; :class:`LaplaceApproximation` costs about the same.

    Args:
        num_steps: Steps of Adam, with a rate that falls to zero.
        num_draws: Chains S from the approximation.
        rate: First learning rate, in prior standard deviations.
        num_restarts: Starts of the search for the first mean.
        num_samples: Draws behind each gradient, in antithetic pairs.

    Raises:
        ValueError: If a number is not positive, or ``num_samples`` not even.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.models import HetGP
        >>> from gp_ensembles.fusion.function_priors import FourierPrior
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> prior = FourierPrior(torch.ones_like(X[:2]))
        >>> model = HetGP(X, X.squeeze(-1), prior, prior)
        >>> inference = MeanField(num_steps=50, num_draws=20)
        >>> inference.infer(model, generator=torch.Generator().manual_seed(0)).theta.shape
        torch.Size([20, 8])
    """

    num_steps: int = 1000
    num_draws: int = 200
    rate: float = 0.05
    num_restarts: int = 8
    num_samples: int = 8

    def __post_init__(self) -> None:
        if min(self.num_steps, self.num_draws, self.num_restarts, self.num_samples) < 1 or not self.rate > 0:
            raise ValueError("numbers of steps, draws, num_restarts and samples, and the rate, must be positive")
        if self.num_samples % 2:
            raise ValueError(f"num_samples must be even, as they come in pairs, got {self.num_samples}")

    def infer(
        self, model: FusionModel, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> PosteriorDraws:
        """Draws from the approximation, shape (S, P), of equal weights."""
        began = time.perf_counter()
        if not model.num_parameters:
            return without_parameters(model, "mean field")
        found = find_modes(model, self.num_restarts, 100, generator=generator)
        best = int(found.points.log_density.argmax())
        mean, log_stddev = self._optimize(model, found.points.theta[best], generator, progress)
        with torch.no_grad():
            theta = self._draw(model, mean, log_stddev, self.num_draws, generator)
            some = self._draw(model, mean, log_stddev, _BOUND_DRAWS, generator)
            bound = float(model.log_joint(some).mean() + _entropy(model, log_stddev))
            value = model.log_joint(self._draw(model, mean, log_stddev.new_full((), -torch.inf), 1, generator))
        if not math.isfinite(bound):
            raise NumericalError("the variational bound is not finite; lower the rate, or use LaplaceApproximation()")
        report = InferenceReport(
            "mean field", time.perf_counter() - began, found.num_gradients + self.num_steps, value, bound,
            cautions=issue_cautions([]),
        )  # fmt: skip
        return PosteriorDraws(theta, torch.zeros_like(theta[:, 0]).log_softmax(0), report)

    def _optimize(
        self, model: FusionModel, start: Tensor, generator: torch.Generator | None, progress: bool
    ) -> tuple[Tensor, Tensor]:
        """Means and log standard deviations, both in units of the prior's standard deviations."""
        mean = (start / model.prior_stddev).detach().requires_grad_()
        log_stddev = torch.full_like(mean, -2.0).detach().requires_grad_()
        optimizer = torch.optim.Adam([mean, log_stddev], lr=self.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.num_steps)
        steps = tqdm(range(self.num_steps), desc="mean field", unit="step", disable=not progress)
        for _ in steps:
            optimizer.zero_grad()
            noise = normal_draws((self.num_samples // 2, len(mean)), mean, generator)
            noise = torch.cat([noise, -noise])
            theta = (mean + log_stddev.exp() * noise) * model.prior_stddev
            loss = -model.log_joint(theta).mean() - log_stddev.sum()
            loss.backward()
            optimizer.step()
            schedule.step()
        return mean.detach(), log_stddev.detach()

    @staticmethod
    def _draw(
        model: FusionModel, mean: Tensor, log_stddev: Tensor, num: int, generator: torch.Generator | None
    ) -> Tensor:
        noise = normal_draws((num, len(mean)), mean, generator)
        return (mean + log_stddev.exp() * noise) * model.prior_stddev


def _entropy(model: FusionModel, log_stddev: Tensor) -> Tensor:
    return (log_stddev + model.prior_stddev.log()).sum() + 0.5 * len(log_stddev) * math.log(2 * math.pi * math.e)
