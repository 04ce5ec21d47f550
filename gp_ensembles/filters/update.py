"""One signature for every filter: the types of the state and of the observation choose the algebra."""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from torch import Tensor

from gp_ensembles.filters.block import predict_joint_linear, predict_steps, update_linear
from gp_ensembles.filters.latent import predict_latent, update_latent
from gp_ensembles.filters.multi_output import MultiOutputNoise, predict_multi_output, update_multi_output
from gp_ensembles.filters.rows import Rows, as_rows
from gp_ensembles.filters.sites import SiteRule
from gp_ensembles.filters.states import (
    ExternalState,
    FilterState,
    GaussianState,
    LatentMoments,
    LinearState,
    MultiOutputState,
    Predictions,
    RefittedState,
    SquareRootState,
    StepPredictions,
    StructuralState,
    StudentTPredictions,
    StudentTState,
    WindowState,
)
from gp_ensembles.filters.student_t import NoiseDiscount, predict_student_t, update_student_t
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.filters.window import Window, predict_window, update_window

Observation = Tensor | SiteRule | NoiseDiscount | MultiOutputNoise | Window
S = TypeVar("S", bound=LinearState | MultiOutputState | WindowState)

_WANTED = {
    GaussianState: "the noise variance, a tensor (*batch), or a rule such as LikelihoodRule",
    SquareRootState: "the noise variance, a tensor (*batch)",
    StudentTState: "a NoiseDiscount, or None for a constant noise variance",
    MultiOutputState: "a MultiOutputNoise",
    WindowState: "a Window",
    ExternalState: "none: its expert keeps it, see ExternalExpert",
    StructuralState: "none: its expert keeps it, see StructuralExpert",
    RefittedState: "none: its expert keeps it, see RefittedExpert",
}


# Types of states and of observations, and the filter for them: what learns a block, and what predicts.
_ALGEBRA: tuple[tuple[tuple[type, ...], tuple[type, ...], Callable[..., Any], Callable[..., Any]], ...] = (
    ((GaussianState, SquareRootState), (Tensor,), update_linear, predict_steps),
    ((GaussianState,), (SiteRule,), update_latent, predict_latent),
    ((StudentTState,), (NoiseDiscount, type(None)), update_student_t, predict_student_t),
    ((MultiOutputState,), (MultiOutputNoise,), update_multi_output, predict_multi_output),
)


@overload
def update_block(
    state: S,
    Phi: Tensor,
    y: Tensor | Rows,
    transition: Transition | None = None,
    observation: Tensor | MultiOutputNoise | Window = ...,
    *,
    prior_variance: Tensor | None = None,
) -> tuple[S, StepPredictions]: ...
@overload
def update_block(
    state: GaussianState,
    Phi: Tensor,
    y: Tensor | Rows,
    transition: Transition | None = None,
    observation: SiteRule = ...,
    *,
    prior_variance: Tensor | None = None,
) -> tuple[GaussianState, LatentMoments]: ...
@overload
def update_block(
    state: StudentTState,
    Phi: Tensor,
    y: Tensor | Rows,
    transition: Transition | None = None,
    observation: NoiseDiscount | None = None,
    *,
    prior_variance: Tensor | None = None,
) -> tuple[StudentTState, StudentTPredictions]: ...
def update_block(
    state: FilterState,
    Phi: Tensor,
    y: Tensor | Rows,
    transition: Transition | None = None,
    observation: Observation | None = None,
    *,
    prior_variance: Tensor | None = None,
) -> tuple[FilterState, Predictions | LatentMoments]:
    r"""Predict and learn a block of targets, one step ahead each; equal to single steps to round-off.

    ================================ ======================================= ===========================
    state                            observation                             predictions
    ================================ ======================================= ===========================
    GaussianState, SquareRootState   noise variance, a tensor (\*batch)      StepPredictions
    GaussianState                    SiteRule                                LatentMoments
    StudentTState                    NoiseDiscount, None for constant noise  StudentTPredictions
    MultiOutputState                 MultiOutputNoise                        StepPredictions (..., B, O)
    WindowState                      Window                                  StepPredictions
    ================================ ======================================= ===========================

    Args:
        state: Posterior of the weights before the block.
        Phi: Features in the order of time, shape (\*batch, B, F).
        y: Targets, shape (B,), or (B, O) for several outputs, NaN where missing; or
            :class:`~gp_ensembles.filters.rows.Rows`, with what counts of each, further noise and uneven steps.
        transition: How the weights change before every row, such as
            :class:`~gp_ensembles.filters.transitions.RandomWalk`; ``None`` for static weights.
        observation: How targets depend on the weights, by the type of the state as above.
        prior_variance: Prior variance of the weights, shape (\*batch); only for a transition that goes back to the
            prior, :class:`~gp_ensembles.filters.transitions.StabilizedForgetting`.

    Returns:
        The posterior after the block, and the predictions made before each target.

    Raises:
        TypeError: If the observation is not one for this state.
        ValueError: If the transition needs the prior variance and there is none.
        NumericalError: If the predictive covariance of the block is not positive definite.

    Example:
        >>> import torch
        >>> from gp_ensembles.filters import RandomWalk, gaussian_state
        >>> noise = torch.tensor(0.1, dtype=torch.float64)
        >>> start, walk = gaussian_state(10 * noise, 1), RandomWalk(0.01)
        >>> Phi, y = torch.ones(3, 1).double(), torch.ones(3).double()
        >>> state, steps = update_block(start, Phi, y, walk, noise)
        >>> steps.mean
        tensor([0.0000, 0.9099, 0.9552], dtype=torch.float64)
    """
    rows = as_rows(y)
    if isinstance(state, WindowState) and isinstance(observation, Window) and transition is None:
        return update_window(state, Phi, rows, observation)
    prior = _prior_variance(state, transition, observation, prior_variance)
    for kinds, observed, update, _ in _ALGEBRA:
        if isinstance(state, kinds) and isinstance(observation, observed):
            found: tuple[FilterState, Predictions | LatentMoments] = update(
                state, Phi, rows, observation, transition, prior
            )
            return found
    raise _wrong_observation(state, observation)


@overload
def predict(
    state: S,
    Phi: Tensor,
    transition: Transition | None = None,
    observation: Tensor | MultiOutputNoise | Window = ...,
    *,
    prior_variance: Tensor | None = None,
    steps: Tensor | None = None,
) -> StepPredictions: ...
@overload
def predict(
    state: GaussianState,
    Phi: Tensor,
    transition: Transition | None = None,
    observation: SiteRule = ...,
    *,
    prior_variance: Tensor | None = None,
    steps: Tensor | None = None,
) -> LatentMoments: ...
@overload
def predict(
    state: StudentTState,
    Phi: Tensor,
    transition: Transition | None = None,
    observation: NoiseDiscount | None = None,
    *,
    prior_variance: Tensor | None = None,
    steps: Tensor | None = None,
) -> StudentTPredictions: ...
def predict(
    state: FilterState,
    Phi: Tensor,
    transition: Transition | None = None,
    observation: Observation | None = None,
    *,
    prior_variance: Tensor | None = None,
    steps: Tensor | None = None,
) -> Predictions | LatentMoments:
    r"""Predict rows that all come next, each on its own, as rows whose targets are missing; learns nothing.

    Args:
        state: Posterior of the weights.
        Phi: Features, shape (\*batch, N, F); with one output and one latent value (..., \*batch, N, F).
        transition: One step of it precedes the prediction; as in :func:`update_block`.
        observation: As in :func:`update_block`.
        prior_variance: As in :func:`update_block`.
        steps: Steps from the last row to each of these, shape (1,); ``None`` for one.

    Returns:
        Predictions as those of :func:`update_block`; log densities are NaN, as there is no target.

    Raises:
        TypeError: If the observation is not one for this state.
        ValueError: If the transition needs the prior variance and there is none.

    Example:
        >>> import torch
        >>> from gp_ensembles.filters import ExponentialForgetting, gaussian_state
        >>> one = torch.ones((), dtype=torch.float64)
        >>> Phi = torch.ones(1, 1, dtype=torch.float64)
        >>> predict(gaussian_state(one, 1), Phi, ExponentialForgetting(0.5), one).variance
        tensor([3.0000], dtype=torch.float64)
    """
    if isinstance(state, WindowState) and isinstance(observation, Window) and transition is None:
        return predict_window(state, Phi, observation)
    prior = _prior_variance(state, transition, observation, prior_variance)
    for kinds, observed, _, ahead in _ALGEBRA:
        if isinstance(state, kinds) and isinstance(observation, observed):
            found: Predictions | LatentMoments = ahead(state, Phi, observation, transition, prior, steps)
            return found
    raise _wrong_observation(state, observation)


def predict_joint(
    state: LinearState,
    Phi: Tensor,
    transition: Transition | None,
    observation: Tensor,
    *,
    prior_variance: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Joint normal prediction of rows (..., \*batch, N, F) that all come next; arguments as in :func:`predict`.

    Returns:
        Mean (..., \*batch, N) and covariance (..., \*batch, N, N), noise included.

    Example:
        >>> import torch
        >>> from gp_ensembles.filters import gaussian_state
        >>> one, Phi = torch.ones(()).double(), torch.ones(2, 1).double()
        >>> predict_joint(gaussian_state(one, 1), Phi, None, one)[1]
        tensor([[2., 1.],
                [1., 2.]], dtype=torch.float64)
    """
    prior = _prior_variance(state, transition, observation, prior_variance)
    return predict_joint_linear(state, Phi, observation, transition, prior)


def _prior_variance(
    state: FilterState, transition: Transition | None, observation: Observation | None, given: Tensor | None
) -> Tensor:
    """The prior variance, or any tensor of its shape where nothing depends on its value."""
    if type(state) not in _WANTED:
        names = ", ".join(kind.__name__ for kind in _WANTED)
        raise TypeError(f"the state must be one of {names}, got {type(state).__name__}")
    if isinstance(state, WindowState) and transition is not None:
        raise TypeError(
            f"a window has no time-varying weights, so leave the transition out, got {type(transition).__name__}; it "
            f"forgets by fewer rows"
        )
    if isinstance(state, WindowState | ExternalState | StructuralState | RefittedState):
        raise TypeError(f"the observation for a {type(state).__name__} is {_WANTED[type(state)]}")
    if given is not None:
        return given
    if transition is not None and transition.needs_prior_variance:
        raise ValueError(
            f"{type(transition).__name__} reverts to the prior, so it needs prior_variance, the prior variance of "
            "the weights"
        )
    has_classes = isinstance(observation, SiteRule) and observation.num_latent > 1
    return state.mean[..., 0, 0] if has_classes or isinstance(state, MultiOutputState) else state.mean[..., 0]


def _wrong_observation(state: FilterState, observation: object) -> TypeError:
    kind = type(state)
    return TypeError(f"the observation for a {kind.__name__} is {_WANTED[kind]}; got {type(observation).__name__}")
