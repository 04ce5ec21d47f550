"""The papers' ensembles by name: warm-up data in, a fitted ensemble ready to stream out.

Every preset does the same four things: build the bases, fit hyperparameters on the warm-up rows by empirical
Bayes, add experts sampled around each optimum, and condition all experts on the warm-up rows. Weights start
equal: the warm-up rows have been used to choose the experts and may not also rank them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gp_ensembles.ensembles.bases import Basis, FourierBasis, HilbertBasis, RadialBasis, dictionary_features
from gp_ensembles.ensembles.build import (
    FitSettings,
    NamedExpert,
    build_maps,
    check_warm_up,
    dynamic_group,
    fitted_experts,
    group_size,
    ready,
    static_group,
)
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.ensembles.targets import RealTarget, Target
from gp_ensembles.meta_learners.averaging import BayesianModelAveraging
from gp_ensembles.meta_learners.switching import MarkovSwitching
from gp_ensembles.meta_learners.transitions import edoebe_transition, sticky_transition

DEFAULT_BASES: tuple[Basis, ...] = (HilbertBasis(), FourierBasis(), RadialBasis())
# Real streams drift at very different speeds: each of these was best on some of the tables in benchmarks/README.md.
WALKS = (1e-4, 1e-3, 1e-2)
FAST_WALKS = (1e-3, 1e-2)  # beside static experts
_REAL = RealTarget()
_FIT = FitSettings()
_OPTIMUM_ONLY = FitSettings(num_samples=1)


def oebe(
    X: Tensor,
    y: Tensor,
    bases: Sequence[Basis] = DEFAULT_BASES,
    fit: FitSettings = _FIT,
    *,
    target: Target = _REAL,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> OnlineEnsemble:
    """Online ensemble of basis expansions: static experts under Bayesian model averaging.

    Waxman and Djuric (2024), section 3.

    Args:
        X: Warm-up inputs, standardized, shape (N, D).
        y: Warm-up targets, standardized, shape (N,); NaN where missing.
        bases: Recipes for the experts' features.
        fit: How hyperparameters are found.
        target: What kind of target y is: real numbers, or classes, counts, levels; see
            :mod:`gp_ensembles.ensembles.targets`. Targets that are not real numbers are not standardized.
        generator: Source of all randomness: frequencies, centers, sampled hyperparameters.
        progress: Show a progress bar.

    Returns:
        A fitted ensemble, conditioned on the warm-up rows, with equal weights.

    Raises:
        ValueError: If X or y is malformed or has fewer than ten rows with a target.

    Example:
        >>> import torch
        >>> from gp_ensembles.ensembles.bases import LinearBasis, PolynomialBasis
        >>> generator = torch.Generator().manual_seed(0)
        >>> X = torch.randn(80, 2, generator=generator, dtype=torch.float64)
        >>> online = oebe(X, X[:, 0] ** 2 - 1, [LinearBasis(), PolynomialBasis((2,))], generator=generator)
        >>> predictions = online.observe(X, X[:, 0] ** 2 - 1)
        >>> online.names[int(online.log_weights.argmax())].split("/")[0]
        'poly2'
    """
    maps = _experts(X, y, bases, fit, generator, progress, target)
    return ready(X, y, [static_group(maps)], BayesianModelAveraging())


def doebe(
    X: Tensor,
    y: Tensor,
    bases: Sequence[Basis] = DEFAULT_BASES,
    fit: FitSettings = _FIT,
    *,
    random_walk_variances: Sequence[float] = WALKS,
    target: Target = _REAL,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> OnlineEnsemble:
    """Dynamic online ensemble of basis expansions: weights of every expert walk at random.

    Waxman and Djuric (2024), section 3. Arguments as in :func:`oebe`, and:

    Args:
        X: Warm-up inputs, shape (N, D).
        y: Warm-up targets, shape (N,).
        bases: Recipes for the experts' features.
        fit: How hyperparameters are found.
        random_walk_variances: What a step of the walk adds to the variance of the function, on average over the
            warm-up rows, in squared units of the target; every expert comes in each of these speeds. For random
            Fourier features this is the variance of each weight's step, as in the paper (which has one speed,
            1e-3); other bases are scaled to the same effect.
        target: What kind of target y is.
        generator: Source of all randomness.
        progress: Show a progress bar.
    """
    maps = _experts(X, y, bases, fit, generator, progress, target)
    return ready(X, y, [dynamic_group(maps, X, random_walk_variances)], BayesianModelAveraging())


def soebe(
    X: Tensor,
    y: Tensor,
    bases: Sequence[Basis] = DEFAULT_BASES,
    fit: FitSettings = _FIT,
    *,
    stay: float = 0.99,
    target: Target = _REAL,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> OnlineEnsemble:
    """Static experts whose weights follow a Markov chain that stays with probability ``stay``.

    Waxman and Djuric (2024), section 3. Other arguments as in :func:`oebe`.
    """
    maps = _experts(X, y, bases, fit, generator, progress, target)
    group = static_group(maps)
    return ready(X, y, [group], MarkovSwitching(sticky_transition(group_size(group), stay)))


def sdoebe(
    X: Tensor,
    y: Tensor,
    bases: Sequence[Basis] = DEFAULT_BASES,
    fit: FitSettings = _FIT,
    *,
    stay: float = 0.99,
    random_walk_variances: Sequence[float] = WALKS,
    target: Target = _REAL,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> OnlineEnsemble:
    """Dynamic experts whose weights follow a Markov chain; arguments as in :func:`doebe` and :func:`soebe`."""
    maps = _experts(X, y, bases, fit, generator, progress, target)
    group = dynamic_group(maps, X, random_walk_variances)
    return ready(X, y, [group], MarkovSwitching(sticky_transition(group_size(group), stay)))


def e_doebe(
    X: Tensor,
    y: Tensor,
    bases: Sequence[Basis] = DEFAULT_BASES,
    fit: FitSettings = _FIT,
    *,
    delta: float = 0.01,
    random_walk_variances: Sequence[float] = FAST_WALKS,
    target: Target = _REAL,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> OnlineEnsemble:
    """Ensembles of static and dynamic experts: each static expert and its dynamic twins exchange weight.

    Waxman and Djuric (2024), section 4.2, with a transition whose columns sum to one and with predictions made
    before each target (the published code scores predictions made with weights that have seen it).

    Args:
        X: Warm-up inputs, shape (N, D).
        y: Warm-up targets, shape (N,).
        bases: Recipes for the experts' features.
        fit: How hyperparameters are found.
        delta: Probability per step of passing to one twin.
        random_walk_variances: As in :func:`doebe`; the paper has one, 1e-3.
        target: What kind of target y is.
        generator: Source of all randomness.
        progress: Show a progress bar.
    """
    maps = _experts(X, y, bases, fit, generator, progress, target)
    groups = [static_group(maps), *(dynamic_group(maps, X, [walk]) for walk in random_walk_variances)]
    transition = edoebe_transition(group_size(groups[0]), len(groups), delta)
    return ready(X, y, groups, MarkovSwitching(transition))


def ie_gp(
    X: Tensor,
    y: Tensor,
    num_features: int = 100,
    fit: FitSettings = _OPTIMUM_ONLY,
    *,
    target: Target = _REAL,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> OnlineEnsemble:
    r"""Incremental ensemble of Gaussian processes: a dictionary of RBF kernels under model averaging.

    Lu et al. (2022): eleven experts with squared length scales :math:`10^{-4}, 10^{-3}, \dots, 10^{6}`, fixed;
    prior variance and noise of each by empirical Bayes.

    Args:
        X: Warm-up inputs, shape (N, D).
        y: Warm-up targets, shape (N,).
        num_features: Features per expert, twice the number of frequencies.
        fit: How prior variance and noise are found.
        target: What kind of target y is.
        generator: Source of all randomness.
        progress: Show a progress bar.
    """
    group = static_group(_dictionary(X, y, num_features, fit, generator, progress, target))
    return ready(X, y, [group], BayesianModelAveraging())


def sie_gp(
    X: Tensor,
    y: Tensor,
    num_features: int = 100,
    fit: FitSettings = _OPTIMUM_ONLY,
    *,
    stay: float = 0.99,
    target: Target = _REAL,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> OnlineEnsemble:
    """Switching incremental ensemble (Lu et al. 2022, section 5): weights follow a Markov chain."""
    group = static_group(_dictionary(X, y, num_features, fit, generator, progress, target))
    return ready(X, y, [group], MarkovSwitching(sticky_transition(group_size(group), stay)))


def die_gp(
    X: Tensor,
    y: Tensor,
    num_features: int = 100,
    fit: FitSettings = _OPTIMUM_ONLY,
    *,
    random_walk_variance: float = 1e-3,
    target: Target = _REAL,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> OnlineEnsemble:
    """Dynamic incremental ensemble (Lu et al. 2022, section 5): weights of every expert walk at random."""
    group = dynamic_group(_dictionary(X, y, num_features, fit, generator, progress, target), X, [random_walk_variance])
    return ready(X, y, [group], BayesianModelAveraging())


def dsie_gp(
    X: Tensor,
    y: Tensor,
    num_features: int = 100,
    fit: FitSettings = _OPTIMUM_ONLY,
    *,
    stay: float = 0.99,
    random_walk_variance: float = 1e-3,
    target: Target = _REAL,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> OnlineEnsemble:
    """Dynamic and switching incremental ensemble (Lu et al. 2022): both at once."""
    group = dynamic_group(_dictionary(X, y, num_features, fit, generator, progress, target), X, [random_walk_variance])
    return ready(X, y, [group], MarkovSwitching(sticky_transition(group_size(group), stay)))


def _experts(
    X: Tensor,
    y: Tensor,
    bases: Sequence[Basis],
    fit: FitSettings,
    generator: torch.Generator | None,
    progress: bool,
    target: Target,
) -> list[NamedExpert]:
    check_warm_up(X, y, target)
    return fitted_experts(build_maps(X, bases, generator), X, y, fit, generator, progress, target)


def _dictionary(
    X: Tensor,
    y: Tensor,
    num_features: int,
    fit: FitSettings,
    generator: torch.Generator | None,
    progress: bool,
    target: Target,
) -> list[NamedExpert]:
    check_warm_up(X, y, target)
    features = dictionary_features(X, num_features, generator=generator)
    return fitted_experts([("rbf kernel", features)], X, y, fit, generator, progress, target)
