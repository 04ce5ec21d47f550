"""A mixture behind the transforms that BoTorch puts on a posterior."""

from collections.abc import Callable

from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.posteriors.transformed import TransformedPosterior
from torch import Tensor

from gp_ensembles.bo.normals import covariances_of
from gp_ensembles.bo.posterior import MixturePosterior


def transformed(mixture: MixturePosterior, untransform: Callable[[GPyTorchPosterior], Posterior]) -> Posterior:
    r"""A mixture behind an outcome transform; mean and variance come from the experts' own, so they stay exact.

    Args:
        mixture: Mixture of the transformed outcomes.
        untransform: What an outcome transform makes of a normal posterior of batch shape (\*batch, M).

    Returns:
        A :class:`MixturePosterior` if the transform is linear, else a ``TransformedPosterior``.

    Raises:
        UnsupportedError: If the transform gives anything else.
    """
    changed = untransform(mixture.components())
    if isinstance(changed, GPyTorchPosterior):
        return MixturePosterior(mixture.log_weights, changed.mean, covariances_of(changed))
    if not isinstance(changed, TransformedPosterior) or not isinstance(changed._posterior, GPyTorchPosterior):
        raise UnsupportedError(f"an outcome transform that gives a {type(changed).__name__} is not supported")
    normal = changed._posterior
    base = MixturePosterior(mixture.log_weights, normal.mean, covariances_of(normal))
    weights = mixture.log_weights.exp()[..., None, None]

    def mean(*_: Tensor) -> Tensor:
        return (weights * changed.mean).sum(-3)

    def variance(*_: Tensor) -> Tensor:
        deviation = changed.mean - mean().unsqueeze(-3)
        return (weights * (changed.variance + deviation.square())).sum(-3)

    return TransformedPosterior(base, changed._sample_transform, mean, variance)


def finished(
    mixture: MixturePosterior,
    X: Tensor,
    outcome_transform: OutcomeTransform | None,
    output_indices: list[int] | None,
    posterior_transform: PosteriorTransform | None,
) -> Posterior:
    r"""A model's posterior from the mixture of its transformed outcomes.

    Args:
        mixture: The mixture.
        X: The inputs as they were given, shape (\*t, q, D).
        outcome_transform: Undone for every expert.
        output_indices: Outputs wanted; all if ``None``.
        posterior_transform: Applied to every expert.

    Raises:
        UnsupportedError: If a posterior is to be transformed that is not normal.
    """
    if output_indices is not None:
        mixture = mixture.select_outputs(output_indices)
        outcome_transform = None if outcome_transform is None else outcome_transform.subset_output(output_indices)
    posterior: Posterior = mixture
    if outcome_transform is not None:
        posterior = transformed(mixture, lambda p: outcome_transform.untransform_posterior(p, X=X.unsqueeze(-3)))
    if posterior_transform is None:
        return posterior
    if not isinstance(posterior, MixturePosterior):
        raise UnsupportedError("a posterior_transform needs a linear outcome transform; give an objective instead")
    return posterior.map_components(lambda p: posterior_transform(p, X))
