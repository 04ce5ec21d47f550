"""Components of a mixture and what an input transform has to learn, fitted in turn."""

from collections.abc import Callable

import torch
from botorch.models.transforms.input import InputTransform
from botorch.optim.closures import ForwardBackwardClosure
from botorch.optim.core import scipy_minimize
from botorch.optim.utils import get_parameters_and_bounds
from gpytorch import Module as GPyTorchModule
from linear_operator.utils.errors import NanError
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError

_ROUNDS = 3  # fits of an input transform with parameters, each followed by one of the components
_INPUT_ITERATIONS = 25


def fit_in_turn(
    transform: InputTransform | None, fit_components: Callable[[], None], log_evidences: Callable[[], Tensor]
) -> None:
    """Fit the components of a mixture, and in turn what an input transform has to learn, in place."""
    fit_components()
    if transform is not None and any(p.requires_grad for p in transform.parameters()):
        for _ in range(_ROUNDS):  # one after the other: each set of hyperparameters has a fit of its own
            maximize_in_transform(transform, log_evidences)
            fit_components()


def maximize_in_transform(transform: InputTransform, log_evidences: Callable[[], Tensor]) -> None:
    """Maximize the evidence of a mixture plus log priors in an input transform's parameters, in place."""
    whole = GPyTorchModule()  # which knows bounds and priors of all its parts
    whole.transform = transform
    parameters, bounds = get_parameters_and_bounds(whole, requires_grad=True)
    before = [value.detach().clone() for value in parameters.values()]

    def loss() -> Tensor:
        try:
            value = log_evidences().logsumexp(-1).sum()
        except NumericalError as error:
            raise NanError(str(error)) from error  # which BoTorch's search takes for a bad point
        for _, module, prior, closure, _ in whole.named_priors():
            value = value + prior.log_prob(closure(module)).sum()
        return -value

    both = ForwardBackwardClosure(loss, parameters)
    try:
        scipy_minimize(both, parameters, bounds, options={"maxiter": _INPUT_ITERATIONS})
    except BaseException:
        with torch.no_grad():
            for value, old in zip(parameters.values(), before, strict=True):
                value.copy_(old)
        raise
    finally:
        for value in parameters.values():
            value.grad = None
