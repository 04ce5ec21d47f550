"""The observations of a BoTorch model, as they were given and as the experts see them."""

from typing import NamedTuple

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils.assorted import fantasize as fantasize_flag
from torch import Tensor, nn


class Observations(NamedTuple):
    """Rows in transformed units.

    Attributes:
        X: Inputs, shape (..., n, D).
        Y: Targets, shape (..., n, O).
        noise: Known noise variance of each row, shape (..., n, 1); ``None`` if it is inferred.
    """

    X: Tensor
    Y: Tensor
    noise: Tensor | None

    def usual_noise(self) -> Tensor | bool:
        """What an observation to come adds: the mean of the known noise, (1, 1), or ``True`` for the experts' own."""
        return True if self.noise is None else self.noise.mean(-2, keepdim=True)


class TrainingData(nn.Module):
    """Rows as they were given, which move with the model's device and dtype.

    They are not in the ``state_dict``: whoever loads the hyperparameters into a model of other data, as
    cross-validation does, must not get these.

    Args:
        X: Inputs, shape (n, D).
        Y: Observations, shape (n, O).
        Yvar: Known noise variances, shape (n, 1), or ``None``.
    """

    X: Tensor
    Y: Tensor
    Yvar: Tensor | None

    def __init__(self, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> None:
        super().__init__()
        for name, values in (("X", X), ("Y", Y), ("Yvar", Yvar)):
            self.register_buffer(name, None if values is None else values.detach().clone(), persistent=False)

    def followed_by(
        self, X: Tensor, Y: Tensor, rows: Observations, outcome_transform: OutcomeTransform | None
    ) -> "TrainingData":
        """These rows and further ones, (n, D) and (n, O), whose noise is known in transformed units only."""
        Yvar = rows.noise
        if Yvar is not None and outcome_transform is not None:
            Yvar = outcome_transform.untransform(rows.Y, Yvar)[1]
        both = None if self.Yvar is None or Yvar is None else torch.cat([self.Yvar, Yvar.detach()])
        return TrainingData(torch.cat([self.X, X.detach()]), torch.cat([self.Y, Y.detach()]), both)


def transform_rows(
    input_transform: InputTransform | None,
    outcome_transform: OutcomeTransform | None,
    X: Tensor,
    Y: Tensor,
    Yvar: Tensor | None = None,
) -> Observations:
    """Rows as the experts see them; transforms that are for evaluation only leave them alone."""
    with fantasize_flag():
        inputs = X if input_transform is None else input_transform(X)
    if outcome_transform is None:
        return Observations(inputs, Y, Yvar)
    return Observations(inputs, *outcome_transform(Y, Yvar, X=X))
