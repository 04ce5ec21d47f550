"""The ensemble to start with: chosen by its scores on all streams and tables that we have, not by taste."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gp_ensembles.ensembles.bases import (
    Basis,
    FourierBasis,
    HilbertBasis,
    LinearBasis,
    PolynomialBasis,
    RadialBasis,
    SplineBasis,
)
from gp_ensembles.ensembles.build import (
    FitSettings,
    build_maps,
    check_warm_up,
    dynamic_group,
    fitted_experts,
    ready,
    static_group,
)
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.ensembles.presets import WALKS
from gp_ensembles.ensembles.targets import RealTarget, Target
from gp_ensembles.meta_learners.base import MetaLearner
from gp_ensembles.meta_learners.combined import CombinedRules
from gp_ensembles.meta_learners.forgetting import FixedShare
from gp_ensembles.meta_learners.gradient import SoftBayes

_REAL = RealTarget()
_ALL: tuple[Basis, ...] = (
    HilbertBasis(),
    FourierBasis(),
    RadialBasis(),
    PolynomialBasis((2, 3, 4)),
    LinearBasis(),
    SplineBasis(),
)
# A likelihood that is not Gaussian is paid for row by row: fewer experts, without those that rarely won.
_FEW: tuple[Basis, ...] = (FourierBasis(), RadialBasis(), LinearBasis())
_ONE = FitSettings(num_samples=1)


def auto(
    X: Tensor,
    y: Tensor,
    bases: Sequence[Basis] | None = None,
    fit: FitSettings = _ONE,
    *,
    random_walk_variances: Sequence[float] = WALKS,
    target: Target = _REAL,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> OnlineEnsemble:
    """All bases, static and at three speeds, under the rule that did best over all our streams.

    The rule follows changes (a share of the weight moves at every row) and mixes where no expert is right
    (Soft-Bayes), and learns which of the two to trust, see :func:`default_rule`. On 35 sets no other choice of bases,
    dynamics and rule that was tried did better by more than 0.03 nats a row (the table is in ``benchmarks/README.md``).
    It runs four times as many experts as optima; where speed matters most, name fewer bases.

    Args:
        X: Warm-up inputs, standardized, shape (N, D).
        y: Warm-up targets, shape (N,), standardized if they are real numbers; NaN where missing.
        bases: Recipes for the experts' features; by default all of them for real targets, and random Fourier features,
            radial functions and the linear one for others.
        fit: How hyperparameters are found; one expert for each optimum.
        random_walk_variances: Speeds of the dynamic copies, as in :func:`~gp_ensembles.ensembles.presets.doebe`.
        target: What kind of target y is.
        generator: Source of all randomness.
        progress: Show a progress bar.

    Returns:
        A fitted ensemble, conditioned on the warm-up rows, with equal weights.

    Raises:
        ValueError: If X or y is malformed or has fewer than ten rows with a target.

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> X = torch.randn(60, 1, generator=generator, dtype=torch.float64)
        >>> online = auto(X, torch.sin(3 * X.squeeze(-1)), [LinearBasis(), SplineBasis()], generator=generator)
        >>> online.ensemble.num_experts % 4
        0
    """
    check_warm_up(X, y, target)
    chosen = bases if bases is not None else (_ALL if target.is_real else _FEW)
    maps = fitted_experts(build_maps(X, chosen, generator), X, y, fit, generator, progress, target)
    groups = [static_group(maps), *(dynamic_group(maps, X, [walk]) for walk in random_walk_variances)]
    return ready(X, y, groups, default_rule())


def default_rule() -> MetaLearner:
    """Fixed share and Soft-Bayes, weighed by a fixed share: experts may be added, for it is built for no number.

    Example:
        >>> type(default_rule()).__name__
        'CombinedRules'
    """
    return CombinedRules([FixedShare(0.01), SoftBayes(0.05)], over=FixedShare(0.02))
