"""Transforms of a mixture's outcomes: they act on every component by itself, so moments and draws stay exact."""

from typing import Any, final

from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from torch import Tensor

from gp_ensembles.bo.pointwise import PointwisePosterior
from gp_ensembles.bo.posterior import MixturePosterior


@final
class MixtureOutcomeTransform(OutcomeTransform):
    """An outcome transform of a model whose posterior is a mixture."""

    def __init__(self, transform: OutcomeTransform | None) -> None:
        super().__init__()
        self.transform: OutcomeTransform | None
        self.register_module("transform", transform)

    def forward(self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Transformed outcomes and their noise variances; learns in training mode, as BoTorch's transforms do."""
        return (Y, Yvar) if self.transform is None else self.transform(Y, Yvar, X=X)

    def untransform(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Outcomes and their noise variances in the units of the data."""
        return (Y, Yvar) if self.transform is None else self.transform.untransform(Y, Yvar, X=X)

    def untransform_posterior(self, posterior: Posterior, X: Tensor | None = None) -> Posterior:
        """The posterior in the units of the data; that of a mixture component by component."""
        transform = self.transform
        if transform is None:
            return posterior
        if isinstance(posterior, MixturePosterior):
            return posterior.map_components(lambda each: transform.untransform_posterior(each, X=X))
        return transform.untransform_posterior(posterior, X=X)

    def subset_output(self, idcs: list[int]) -> "MixtureOutcomeTransform":
        """The transform of some of the outputs."""
        return MixtureOutcomeTransform(None if self.transform is None else self.transform.subset_output(idcs))


def apply_transforms(
    posterior: Posterior,
    X: Tensor,
    outcome_transform: OutcomeTransform | None,
    output_indices: list[int] | None,
    posterior_transform: PosteriorTransform | None,
) -> Posterior:
    r"""A model's posterior at X (\*t, q, D) from the one of its transformed outcomes.

    Raises:
        UnsupportedError: If a posterior is to be transformed that is not normal.
    """
    if output_indices is not None and isinstance(posterior, MixturePosterior):
        posterior = posterior.select_outputs(output_indices)
        outcome_transform = None if outcome_transform is None else outcome_transform.subset_output(output_indices)
    if outcome_transform is not None:
        posterior = outcome_transform.untransform_posterior(posterior, X=X)
    if posterior_transform is None:
        return posterior
    if isinstance(posterior, GPyTorchPosterior):
        changed: Posterior = posterior_transform(posterior, X)
        return changed
    if not isinstance(posterior, MixturePosterior):
        raise UnsupportedError(
            "a posterior_transform needs normal components and a linear outcome transform; give an objective instead"
        )
    return posterior.map_components(lambda each: posterior_transform(each, X))


def as_mixture(posterior: Any) -> MixturePosterior:
    """A posterior as a mixture; a normal one is a mixture of one component.

    Raises:
        UnsupportedError: If it is neither.
    """
    if isinstance(posterior, MixturePosterior):
        return posterior
    if isinstance(posterior, GPyTorchPosterior) and posterior.mean.shape[-1] == 1:
        covariance = posterior.distribution.covariance_matrix[..., None, None, :, :]
        return MixturePosterior(posterior.mean.new_zeros(1), posterior.mean.unsqueeze(-3), covariance)
    raise UnsupportedError(
        f"this needs a mixture of normal distributions, and the posterior is a {type(posterior).__name__}: take a "
        f"linear outcome transform such as Standardize, and one point at a time where weights depend on the input"
    )


def normal_like(posterior: Any) -> GPyTorchPosterior:
    """The normal distribution with a posterior's mean and covariance.

    Raises:
        UnsupportedError: If it is no mixture.
    """
    if isinstance(posterior, GPyTorchPosterior):
        return posterior
    if isinstance(posterior, PointwisePosterior):
        return posterior.moment_matched()
    return as_mixture(posterior).moment_matched()
