r"""Thompson samples: functions drawn from the posterior, exactly and once and for all.

An expert is drawn by its weight, then its weights :math:`\theta \sim N(\mu, \Sigma)`; the draw is
:math:`f(x) = \phi(x)^\top \theta`, a function that can be evaluated and differentiated anywhere.
"""

from typing import Any, NamedTuple, final

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from gp_ensembles.bo.belief import Belief
from gp_ensembles.bo.model import EnsembleModel
from gp_ensembles.features.base import BoundFeatures
from gp_ensembles.features.rebatch import take_experts


class _Draws(NamedTuple):
    """The draws from one expert.

    Attributes:
        features: Its feature map alone, X (..., N, D) to (..., N, F).
        places: Which of the flattened draws, shape (K,).
        weights: The weights drawn, in units of the targets, shape (K, F).
    """

    features: BoundFeatures
    places: Tensor
    weights: Tensor


@final
class EnsemblePath(SamplePath):
    r"""Functions drawn from an ensemble's posterior at the next step.

    With \*s the sample shape, followed by (O,) if there are several outputs, it maps X (\*t, n, D) to (\*b, n), where
    \*b broadcasts \*t and \*s: BoTorch's contract for paths.

    Args:
        model: The ensemble that the transforms are taken from.
        shape: \*s.
        draws: The draws, by expert.

    Example:
        >>> import torch
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> model = EnsembleModel(X, X.sin(), generator=torch.Generator().manual_seed(0))
        >>> path = draw_paths(model, torch.Size([2]))
        >>> isinstance(path, EnsemblePath), path(X[:3]).shape
        (True, torch.Size([2, 3]))
    """

    def __init__(self, model: EnsembleModel, shape: torch.Size, draws: list[_Draws]) -> None:
        super().__init__()
        self.model: EnsembleModel = model
        self.shape = shape
        self.draws = draws

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Nothing to choose: every draw is of one expert."""

    def forward(self, X: Tensor, **_: Any) -> Tensor:
        r"""Values at X (\*t, n, D), shape (\*b, n)."""
        inputs = self.model.transform_inputs(X)
        lead, num = inputs.shape[:-2], len(self.shape)
        own = lead[max(0, len(lead) - num) :]
        if all(size == 1 for size in own):  # all draws at the same points: an expert's features serve all its draws
            points = inputs.reshape(*lead[: max(0, len(lead) - num)], *inputs.shape[-2:])
            parts = [(d.places, (d.features(points) @ d.weights.mT).mT) for d in self.draws]
        else:
            batch = torch.broadcast_shapes(lead, self.shape)
            points = (
                inputs.expand(*batch, *inputs.shape[-2:]).flatten(len(batch) - num, len(batch) - 1) if num else inputs
            )
            parts = [
                (d.places, (d.features(points[..., d.places, :, :]) @ d.weights.unsqueeze(-1)).squeeze(-1))
                for d in self.draws
            ]
        order = torch.cat([index for index, _ in parts]).argsort()
        values = torch.cat([value for _, value in parts], dim=-2)[..., order, :]
        return self._untransform(values.reshape(*values.shape[:-2], *self.shape, values.shape[-1]), X)

    def _untransform(self, values: Tensor, X: Tensor) -> Tensor:
        transform = self.model._outcome_transform
        if transform is None:
            return values
        columns = values.unsqueeze(-1) if self.model.num_outputs == 1 else values.mT
        outcomes: Tensor = transform.untransform(columns, X=X)[0]
        return outcomes.squeeze(-1) if self.model.num_outputs == 1 else outcomes.mT


@torch.no_grad()
def draw_paths(
    model: EnsembleModel,
    sample_shape: torch.Size = torch.Size(),  # noqa: B008 - as in BoTorch
    *,
    generator: torch.Generator | None = None,
) -> EnsemblePath:
    """Functions drawn from the posterior at the next step.

    Args:
        model: The ensemble.
        sample_shape: Shape of the sample.
        generator: Source of randomness; torch's global one if ``None``.

    Raises:
        UnsupportedError: If the model is a batch of fantasies.

    Example:
        >>> import torch
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> model = EnsembleModel(X, X.sin(), generator=torch.Generator().manual_seed(0))
        >>> path = draw_paths(model, torch.Size([3]), generator=torch.Generator().manual_seed(1))
        >>> path(X).shape
        torch.Size([3, 6])
    """
    if model.batch_shape:
        raise UnsupportedError("paths are drawn from a model of data, not from a batch of fantasies")
    beliefs = model.beliefs()
    num_outputs = model.num_outputs
    num_draws = sample_shape.numel()
    picked = torch.multinomial(beliefs.log_weights.exp(), num_draws, replacement=True, generator=generator)
    draws, first = [], 0
    for expert, belief in zip(model.ensemble.experts, beliefs.experts, strict=True):
        for entry in range(belief.noise.shape[0]):
            chosen = (picked == first + entry).nonzero().squeeze(-1)
            if chosen.numel():
                index = torch.tensor([entry], dtype=torch.int64, device="cpu")
                features = take_experts(expert.features, expert.batch_shape, index).bind()
                weights = _draw_weights(belief, entry, chosen.numel(), generator)
                rows = (chosen.unsqueeze(-1) * num_outputs + torch.arange(num_outputs, device=chosen.device)).flatten()
                draws.append(_Draws(_only(features), rows, weights.flatten(0, 1)))
        first += belief.noise.shape[0]
    shape = sample_shape if num_outputs == 1 else torch.Size([*sample_shape, num_outputs])
    return EnsemblePath(model, shape, draws)


def _only(features: BoundFeatures) -> BoundFeatures:
    """A map of batch shape (1,) without that dimension."""
    return lambda X: features(X).squeeze(-3)


def _draw_weights(belief: Belief, entry: int, num: int, generator: torch.Generator | None) -> Tensor:
    """Draws (num, O, F) from the weights of one expert, in units of the targets."""
    factor = psd_safe_cholesky(belief.covariance[entry])  # (G, F, F)
    mean = belief.mean[entry]
    normals = torch.randn(num, *mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
    draws: Tensor = mean + (factor @ normals.unsqueeze(-1)).squeeze(-1)
    return draws * belief.scale[entry].unsqueeze(-1)


@DrawMatheronPaths.register(EnsembleModel)  # type: ignore[untyped-decorator]
def _draw_matheron_paths(model: EnsembleModel, *, sample_shape: torch.Size, **_: Any) -> EnsemblePath:
    """What BoTorch's pathwise functions call; they seed torch's global generator themselves."""
    return draw_paths(model, sample_shape)
