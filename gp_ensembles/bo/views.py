"""Views of an ensemble as models with normal posteriors, for acquisition functions that cannot take a weighted mixture.

BoTorch has no weights for mixtures of normal distributions: it averages over models as if they were equally likely, or
takes mean and variance for a normal distribution's. The docstring of each view says what it keeps of the mixture.
"""

from abc import ABC
from typing import Any, final

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.sampling.base import MCSampler
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.bo.posterior import MixturePosterior, as_mixture, normal_like


class View(Model, ABC):
    """An ensemble as a model with other posteriors."""

    def __init__(self, model: MixtureModel) -> None:
        super().__init__()
        self.model = model

    @property
    def num_outputs(self) -> int:
        """Number of outputs O."""
        return self.model.num_outputs


@final
class GaussianView(View):
    """The normal distribution with the mean and the covariance of the mixture: for entropy searches.

    Conditioning and fantasies are those of the ensemble, weights included.

    Args:
        model: The ensemble.

    Example:
        >>> import torch
        >>> from gp_ensembles.bo.model import EnsembleModel
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> model = EnsembleModel(X, X.sin(), generator=torch.Generator().manual_seed(0))
        >>> GaussianView(model).posterior(X).distribution.covariance_matrix.shape
        torch.Size([6, 6])
    """

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch of fantasies."""
        return self.model.batch_shape

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Inputs as they were given, (n, D), or (O, n, D) for several outputs as in BoTorch's batched models."""
        (X,) = self.model.train_inputs
        return (X if self.num_outputs == 1 else X.expand(self.num_outputs, *X.shape),)

    @property
    def likelihood(self) -> Any:
        """The likelihood of the model that is viewed."""
        return self.model.likelihood

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """A ``GPyTorchPosterior``; arguments as in :meth:`MixtureModel.posterior`."""
        posterior = normal_like(self.model.posterior(X, output_indices, observation_noise))
        return posterior if posterior_transform is None else posterior_transform(posterior, X)

    def forward(self, X: Tensor) -> MultivariateNormal:
        """The distribution of :meth:`posterior`: what GIBBON with pending points asks a model for."""
        normal: MultivariateNormal = normal_like(self.model.posterior(X)).distribution
        return normal

    def condition_on_observations(self, X: Tensor, Y: Tensor, **options: Any) -> "GaussianView":
        """See :meth:`MixtureModel.condition_on_observations`."""
        return GaussianView(self.model.condition_on_observations(X, Y, **options))

    def fantasize(self, X: Tensor, sampler: MCSampler, **options: Any) -> "GaussianView":
        """See :meth:`MixtureModel.fantasize`."""
        return GaussianView(self.model.fantasize(X, sampler, **options))

    def subset_output(self, idcs: list[int]) -> "GaussianView":
        """See :meth:`MixtureModel.subset_output`."""
        return GaussianView(self.model.subset_output(idcs))


@final
class EquallyWeightedView(View):
    r"""K normal distributions of equal weight, as BoTorch's fully Bayesian models are: for learning by committee.

    Experts are repeated in proportion to their weights (systematic resampling at the midpoints), so every weight is
    kept to within :math:`1/K`.

    Args:
        model: The ensemble, not a batch of fantasies or of data sets.
        num_models: Number of normal distributions K.

    Raises:
        ValueError: If K is not positive.
        UnsupportedError: If the model is a batch of fantasies or of data sets.

    Example:
        >>> import torch
        >>> from gp_ensembles.bo.model import EnsembleModel
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> model = EnsembleModel(X, X.sin(), generator=torch.Generator().manual_seed(0))
        >>> EquallyWeightedView(model, 8).posterior(X).mean.shape
        torch.Size([8, 6, 1])
    """

    _is_fully_bayesian = True
    _is_ensemble = True

    def __init__(self, model: MixtureModel, num_models: int) -> None:
        super().__init__(model)
        if num_models < 1:
            raise ValueError(f"an equally weighted view needs at least one model, got {num_models}")
        if model.batch_shape:
            raise UnsupportedError("an equally weighted view is for a model of one data set, not for a batch")
        self.num_mcmc_samples = num_models

    @property
    def batch_shape(self) -> torch.Size:
        """(K,)."""
        return torch.Size([self.num_mcmc_samples])

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GaussianMixturePosterior:
        r"""K normal posteriors, (\*t, K, q, O); arguments as in :meth:`MixtureModel.posterior`."""
        mixture = as_mixture(self.model.posterior(X, output_indices, observation_noise, posterior_transform))
        levels = torch.arange(0.5, self.num_mcmc_samples, dtype=X.dtype, device=X.device) / self.num_mcmc_samples
        cumulative = mixture.log_weights.exp().cumsum(-1)
        index = torch.searchsorted(cumulative, levels.expand(*cumulative.shape[:-1], -1).contiguous())
        index = index.clamp_max(mixture.num_experts - 1)
        mean, covariance = mixture.component_mean, mixture.component_covariance
        covariance = covariance.expand(*mixture.batch_shape, *covariance.shape[-4:])
        resampled = MixturePosterior(torch.zeros_like(levels), _taken(mean, index, -3), _taken(covariance, index, -4))
        return GaussianMixturePosterior(resampled.components().distribution)


@final
class ExpertsView(View):
    r"""The experts' own normal posteriors as one model of batch shape (\*batch, M)."""

    @property
    def batch_shape(self) -> torch.Size:
        r"""(\*batch, M)."""
        return torch.Size([*self.model.batch_shape, self.model.num_experts])

    def posterior(self, X: Tensor, *arguments: Any, **options: Any) -> GPyTorchPosterior:
        r"""The experts' posteriors at X (\*t, M or 1, q, D), points that are the same for all of them."""
        points = X if X.ndim == 2 else X[..., 0, :, :]
        return as_mixture(self.model.posterior(points, *arguments, **options)).components()


def _taken(values: Tensor, index: Tensor, axis: int) -> Tensor:
    r"""Components (\*b, M, ...) along the axis that an index (K,) or (\*b, K) names."""
    places = index.reshape(*index.shape, *[1] * (-axis - 1))
    return values.gather(axis, places.expand(*values.shape[:axis], -1, *values.shape[axis + 1 :]))
