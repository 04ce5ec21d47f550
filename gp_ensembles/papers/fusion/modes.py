"""Modes of the joint density by L-BFGS with all starts as one tensor, and MAP inference from them."""

import time
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.minimize import minimize
from gp_ensembles.papers.fusion.base import FusionModel, hyperparameter_block
from gp_ensembles.papers.fusion.inference import (
    InferenceMethod,
    InferenceReport,
    PosteriorDraws,
    issue_cautions,
    without_parameters,
)
from gp_ensembles.papers.fusion.leapfrog import LogDensity, Points, evaluate

# Times that a start is halved towards the prior mean until its log joint density is finite.
_HALVINGS = 20


class ModeSearch(NamedTuple):
    """Results of R searches for a mode.

    Args:
        points: Positions, shape (R, P), log densities, shape (R,), and gradients.
        converged: Whether a tolerance was met, shape (R,).
        num_gradients: Gradient evaluations, each for all searches still under way.
    """

    points: Points
    converged: Tensor
    num_gradients: int


def gradient_ascent(
    log_density: LogDensity,
    start: Tensor,
    *,
    max_iterations: int = 300,
    gradient_tolerance: float = 1e-4,
    loss_tolerance: float = 1e-10,
    progress: bool = False,
) -> ModeSearch:
    """Local maxima from many starts at once, by :func:`~gp_ensembles.numerics.minimize.minimize`.

    Shapes: ``start`` (R, P).

    Raises:
        ValueError: If a log density is not finite at a start.
    """
    with tqdm(desc="modes", unit="evaluation", disable=not progress) as bar:

        def descended(theta: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            points = evaluate(log_density, theta)
            bar.set_postfix_str(f"best {float(points.log_density.amax()):.2f}", refresh=False)
            bar.update()
            return -points.log_density, -points.gradient

        found = minimize(
            descended,
            start,
            max_iterations=max_iterations,
            gradient_tolerance=gradient_tolerance,
            loss_tolerance=loss_tolerance,
        )
    return ModeSearch(Points(found.point, -found.value, -found.gradient), found.converged, found.num_evaluations)


@final
@dataclass(frozen=True)
class MAP(InferenceMethod):
    """Maximum a posteriori parameters: modes of the joint density, searched from draws of the prior.

    All restarts ascend as one tensor by L-BFGS. Sampled hyperparameters are maximized with everything else, under their
    priors; that is not type-II maximum likelihood, for which see :func:`maximize_evidence`.

    Args:
        num_restarts: Number of starts R.
        max_iterations: Most L-BFGS steps of each.

    Raises:
        ValueError: If a number is not at least one.

    Example:
        >>> import torch
        >>> from gp_ensembles.papers.fusion.models import HetGP
        >>> from gp_ensembles.papers.fusion.function_priors import FourierPrior
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> prior = FourierPrior(torch.ones_like(X[:2]))
        >>> model = HetGP(X, X.squeeze(-1), prior, prior)
        >>> found = MAP(num_restarts=3).infer(model, generator=torch.Generator().manual_seed(0))
        >>> found.theta.shape, found.log_weights.exp().sum().round(decimals=6)
        (torch.Size([3, 8]), tensor(1., dtype=torch.float64))
    """

    num_restarts: int = 8
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        if self.num_restarts < 1 or self.max_iterations < 1:
            raise ValueError("num_restarts and max_iterations must be at least 1")

    def infer(
        self, model: FusionModel, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> PosteriorDraws:
        """The modes, shape (R, P), with equal weights: an average of their predictions hedges against poor ones."""
        began = time.perf_counter()
        if not model.num_parameters:
            return without_parameters(model, "MAP")
        found = find_modes(model, self.num_restarts, self.max_iterations, generator=generator, progress=progress)
        value = found.points.log_density
        cautions = issue_cautions(_unconverged(found))
        report = InferenceReport("MAP", time.perf_counter() - began, found.num_gradients, value, cautions=cautions)
        return PosteriorDraws(found.points.theta, torch.zeros_like(value).log_softmax(0), report)


def find_modes(
    model: FusionModel,
    num_restarts: int,
    max_iterations: int,
    *,
    held_at: Tensor | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> ModeSearch:
    """Modes of a model's joint density from draws of its prior, all at once. Shapes: ``held_at`` (P,).

    Raises:
        NumericalError: If the log joint density is not finite at a start, nor nearer to the prior mean.
    """
    fixed = model.prior_mean if held_at is None else held_at
    free = torch.cat([torch.full_like(part, held_at is None or name not in _sampled(model)).flatten()
                      for name, part in model.unpack(fixed).items()])  # fmt: skip

    def held(theta: Tensor) -> Tensor:
        return fixed + free * (theta - fixed)

    start = finite_starts(model, held(model.draw_prior(num_restarts, generator=generator)))
    return gradient_ascent(
        lambda theta: model.log_joint(held(theta)), start, max_iterations=max_iterations, progress=progress
    )


def _sampled(model: FusionModel) -> set[str]:
    """Names of the blocks of sampled hyperparameters."""
    return {hyperparameter_block(name) for name in model.functions}


@torch.no_grad()
def finite_starts(model: FusionModel, start: Tensor) -> Tensor:
    """Starts (R, P), each halved towards the prior mean until its log joint density is finite.

    Raises:
        NumericalError: If one is not finite even near the prior mean.
    """
    for _ in range(_HALVINGS):
        bad = ~model.log_joint(start).isfinite()
        if not bool(bad.any()):
            return start
        start = torch.where(bad.unsqueeze(-1), 0.5 * (start + model.prior_mean), start)
    raise NumericalError(
        "the log joint density is not finite even near the prior mean; check that targets, variances and amplitudes "
        "are of moderate size (standardize the targets) and use float64"
    )


def _unconverged(found: ModeSearch) -> list[str]:
    """A caution if the best search has not converged."""
    best = int(found.points.log_density.argmax())
    if bool(found.converged[best]):
        return []
    slope = float(found.points.gradient[best].abs().amax())
    if slope < 1e-3:
        return []
    return [f"the search for the mode has not converged (largest gradient {slope:.2g}); raise max_iterations"]
