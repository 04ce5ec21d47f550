"""Most probable parameters, from many starts at once."""

import time
from dataclasses import dataclass, field
from enum import Enum
from typing import final

import torch
from torch import Tensor

from gp_ensembles.fusion.ascent import Ascent, ascend
from gp_ensembles.fusion.inference import Inference, Inferred, complain, nothing_to_learn
from gp_ensembles.fusion.model import FusionModel
from gp_ensembles.fusion.report import Report
from gp_ensembles.numerics.cholesky import NumericalError

# Times that a start is halved towards the prior mean until its log joint density is finite.
_HALVINGS = 20


@final
class ModeWeights(Enum):
    """Weights of the modes found from different starts.

    ``EQUAL`` averages their predictions, which hedges against poor modes; ``JOINT`` gives each its joint density, in
    effect the best mode alone wherever a few nats lie between them.

    Example:
        >>> ModeWeights("equal") is ModeWeights.EQUAL
        True
    """

    EQUAL = "equal"
    JOINT = "joint"


@final
@dataclass(frozen=True)
class MAP(Inference):
    """Maximum a posteriori parameters: modes of the joint density, searched from draws of the prior.

    All restarts climb as one tensor by L-BFGS. Sampled hyperparameters are maximized with everything else, under their
    priors; that is not type-II maximum likelihood, for which see :func:`maximize_evidence`.

    Args:
        restarts: Number of starts R.
        max_iterations: Most steps of each.
        weights: Weights of the modes.

    Raises:
        ValueError: If a number is not at least one.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.joint_models import HetGP
        >>> from gp_ensembles.fusion.roles import FourierRole
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> role = FourierRole(torch.ones_like(X[:2]))
        >>> model = HetGP(X, X.squeeze(-1), role, role)
        >>> found = MAP(restarts=3).infer(model, generator=torch.Generator().manual_seed(0), progress=False)
        >>> found.theta.shape, found.log_weights.exp().sum().round(decimals=6)
        (torch.Size([3, 8]), tensor(1., dtype=torch.float64))
    """

    restarts: int = 8
    max_iterations: int = 1000
    weights: ModeWeights = field(default=ModeWeights.EQUAL)

    def __post_init__(self) -> None:
        if self.restarts < 1 or self.max_iterations < 1:
            raise ValueError("restarts and max_iterations must be at least 1")

    def infer(self, model: FusionModel, *, generator: torch.Generator | None = None, progress: bool = True) -> Inferred:
        """The modes, shape (R, P), with their weights."""
        began = time.perf_counter()
        if not model.num_parameters:
            return nothing_to_learn(model, "MAP")
        found = find_modes(model, self.restarts, self.max_iterations, generator=generator, progress=progress)
        value = found.points.log_density
        chosen = value if self.weights is ModeWeights.JOINT else torch.zeros_like(value)
        complaints = complain(unfinished(found))
        report = Report("MAP", time.perf_counter() - began, found.num_gradients, value, complaints=complaints)
        return Inferred(found.points.theta, chosen.log_softmax(0), report)


def find_modes(
    model: FusionModel,
    restarts: int,
    max_iterations: int,
    *,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> Ascent:
    """Modes of a model's joint density from draws of its prior, all at once.

    Args:
        model: The model, with at least one parameter.
        restarts: Number of starts R.
        max_iterations: Most steps of each.
        generator: Source of randomness.
        progress: Whether to show a progress bar.

    Raises:
        NumericalError: If the log joint density is not finite at a start, nor nearer to the prior mean.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.joint_models import HetGP
        >>> from gp_ensembles.fusion.roles import FourierRole
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> role = FourierRole(torch.ones_like(X[:2]))
        >>> modes = find_modes(HetGP(X, X.squeeze(-1), role, role), 2, 500, generator=torch.Generator().manual_seed(0))
        >>> bool((modes.points.gradient.abs() < 1e-2).all())
        True
    """
    start = usable_starts(model, model.draw_prior(restarts, generator=generator))
    return ascend(model.log_joint, start, max_iterations=max_iterations, progress=progress)


@torch.no_grad()
def usable_starts(model: FusionModel, start: Tensor) -> Tensor:
    """Starts (R, P), those with a log joint density that is not finite drawn towards the prior mean.

    Raises:
        NumericalError: If one is not finite even next to the prior mean.
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


def unfinished(found: Ascent) -> list[str]:
    """What to say of ascents that are not at a mode yet; nothing while the best one is."""
    best = int(found.points.log_density.argmax())
    if bool(found.converged[best]):
        return []
    slope = float(found.points.gradient[best].abs().amax())
    if slope < 1e-3:
        return []
    return [f"the best mode is not reached (largest gradient {slope:.2g}); allow more than the given max_iterations"]
