"""A fitted fusion as a BoTorch model."""

from collections.abc import Sequence
from typing import Any, final

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.posteriors.posterior import Posterior
from torch import Tensor, nn

from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.fusion.experts import ExpertPredictions, predict_expert
from gp_ensembles.fusion.fitted import FittedFusion
from gp_ensembles.fusion.models import BHS, PBHS

_FLOOR = 1e-10  # least variance of a component without noise, in variances of the targets


@final
class FusedModel(Model):
    r"""A fusion and its experts as one BoTorch model of one output, differentiable in the inputs.

    The posterior at a point is the predictive mixture over the draws of the parameters. Weights depend on the input,
    and the joint distribution of two points is not defined, so that q must be one: optimize acquisition functions one
    point at a time. Analytic ones treat mean and variance as those of a normal distribution.

    Args:
        fitted: The fitted fusion.
        experts: The experts whose predictions it stacks (BHS, P-BHS), each as for
            :func:`~gp_ensembles.fusion.experts.predict_expert`; none for models that learn their own.

    Raises:
        ValueError: If their number is not the fusion's.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion import FourierPrior, LaplaceApproximation, PoGPE, fit_fusion
        >>> X = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> prior = FourierPrior(torch.ones_like(X[:2]))
        >>> fusion = PoGPE(X, (2 * X).sin().squeeze(-1), 2, prior, prior, prior)
        >>> model = FusedModel(fit_fusion(fusion, LaplaceApproximation(num_draws=50)))
        >>> model.posterior(X[:3].unsqueeze(-2)).mean.shape
        torch.Size([3, 1, 1])
    """

    def __init__(self, fitted: FittedFusion, experts: Sequence[object] = ()) -> None:
        super().__init__()
        wanted = fitted.model.num_experts if isinstance(fitted.model, BHS | PBHS) else 0
        if len(experts) != wanted:
            raise ValueError(f"a fitted {type(fitted.model).__name__} takes {wanted} experts here, got {len(experts)}")
        self.fitted = fitted
        self.experts = tuple(experts)
        # As submodules, so that they move and change modes with the model.
        self._modules_of_experts = nn.ModuleList(
            part
            for expert in experts
            for part in (expert if isinstance(expert, tuple) else (expert,))
            if isinstance(part, nn.Module)
        )

    @property
    def num_outputs(self) -> int:
        """One."""
        return 1

    @property
    def batch_shape(self) -> torch.Size:
        """Empty."""
        return torch.Size()

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        r"""The predictive mixture at single points.

        Args:
            X: Inputs, shape (\*batch, 1, D).
            output_indices: ``None`` or [0].
            observation_noise: Whether the experts' noise is part of it; in a product of powers noise also changes the
                weights of experts, and so the mean. Models that learn their own experts always include it.
            posterior_transform: As in BoTorch.

        Raises:
            UnsupportedError: If q is not one, or noise variances are given.
            ValueError: If X has another number of inputs, or another output is asked for.
        """
        model = self.fitted.model
        if isinstance(observation_noise, Tensor):
            raise UnsupportedError("the noise is that of the experts; ask for it by observation_noise=True")
        if output_indices not in (None, [0]):
            raise ValueError(f"the model has one output, asked for {output_indices}")
        if X.ndim < 2 or X.shape[-1] != model.X.shape[-1]:
            raise ValueError(f"inputs must have shape (..., 1, {model.X.shape[-1]}), got {tuple(X.shape)}")
        if X.shape[-2] != 1:
            raise UnsupportedError(
                f"q must be one, got {X.shape[-2]}: weights that depend on the input leave no joint distribution; give "
                f"points as (N, 1, D), and optimize acquisition functions one point at a time"
            )
        self.eval()
        batch_shape, flat = X.shape[:-2], X.reshape(-1, X.shape[-1])
        predictions = self._predictions(flat, observation_noise) if self.experts else None
        # Conditional draws of a GPPrior use the same noise in every call, so that optimizers see one function.
        generator = torch.Generator(X.device).manual_seed(0)
        mixture = model.predictive(
            self.fitted.theta, flat, predictions, draw_log_weights=self.fitted.log_weights, generator=generator
        )
        weights, mean, variance = (part.mT.reshape(*batch_shape, -1) for part in mixture)
        posterior: Posterior = MixturePosterior(weights, mean[..., None, None], variance[..., None, None, None])
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def _predictions(self, X: Tensor, noise: bool) -> ExpertPredictions:
        """The experts at inputs (N, D), with gradients; each point by itself."""
        found = [predict_expert(expert, X) for expert in self.experts]
        mean, variance, own = (torch.cat([part.expand_as(one.mean) for one, part in zip(found, parts, strict=True)])
                               for parts in zip(*found, strict=True))  # fmt: skip
        if not noise:
            own = torch.zeros_like(own)
            variance = variance.clamp_min(_FLOOR * float(self.fitted.model.y.var()))
        return ExpertPredictions(mean, variance, own)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **settings: Any) -> Model:
        """Not supported: weights are learned from all targets at once.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError("fit the fusion again with the further rows, or learn online by OnlineFusion")
