"""Several classes without an order: the softmax of one function for each."""

from gpytorch.likelihoods.likelihood import Likelihood
from torch import Tensor
from torch.distributions import Categorical


class CategoricalLikelihood(Likelihood):
    r"""Targets 0, 1, ..., C - 1 with :math:`p(y = c \mid f) \propto e^{f_c}`, one latent function for each class.

    GPyTorch's ``SoftmaxLikelihood`` mixes its latent functions by trainable weights and keeps them on another axis; here
    the classes are the last axis and nothing is mixed.

    Args:
        num_classes: Number of classes C, at least two.

    Raises:
        ValueError: If there are fewer than two classes.

    Example:
        >>> import torch
        >>> CategoricalLikelihood(4)(torch.zeros(2, 4)).probs[0]
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"there must be at least two classes, got {num_classes}")
        self.num_classes = num_classes

    def forward(self, function_samples: Tensor, *args: object, **kwargs: object) -> Categorical:
        """The distribution of targets given function values (..., C)."""
        return Categorical(logits=function_samples, validate_args=False)
