"""Several classes, each with a latent value of its own."""

import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor
from torch.distributions import Categorical

from gp_ensembles.likelihoods.response import latent_dim
from gp_ensembles.likelihoods.support import check_support


class MulticlassLikelihood(Likelihood):
    r"""Classes 0 to C - 1 with the softmax of the latent vector as probabilities.

    .. math:: p(y = c \mid z) = e^{z_c} / \sum_d e^{z_d}

    GPyTorch's ``SoftmaxLikelihood`` mixes latent features by a trained matrix first, draws it at random, and takes
    latent values whose last two axes have the same length for their transpose. Here latent value c is that of class c,
    on the last axis always, and there are no parameters. A constant added to all latent values changes nothing.

    Args:
        num_classes: Number of classes C, at least two.

    Raises:
        ValueError: If there are fewer than two classes.

    Example:
        >>> import torch
        >>> MulticlassLikelihood(3)(torch.tensor([[0.0, 0.0, 2.0]])).probs
        tensor([[0.1065, 0.1065, 0.7870]])
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"a classification needs at least two classes, got {num_classes}")
        self.num_classes = num_classes

    @property
    def latent_dim(self) -> int:
        """Length of the latent vector: the number of classes."""
        return self.num_classes

    def forward(self, function_samples: Tensor, *inputs: object) -> Categorical:
        r"""Distributions of classes given latent vectors, shape (..., N, C).

        Raises:
            ValueError: If the last axis is not that of the classes.
        """
        if function_samples.shape[-1:] != torch.Size([self.num_classes]):
            raise ValueError(
                f"latent values must have shape (..., {self.num_classes}), one for each class on the last axis, got "
                f"{tuple(function_samples.shape)}"
            )
        return Categorical(logits=function_samples, validate_args=False)

    def check_targets(self, y: Tensor) -> None:
        """Raise a ValueError that names value and row unless each target (N,) is a class number or NaN (missing)."""
        check_support(self, y)


@latent_dim.register(MulticlassLikelihood)
def _(likelihood: MulticlassLikelihood) -> int:
    return likelihood.latent_dim
