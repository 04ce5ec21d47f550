"""The fit of input transforms with parameters."""

from collections.abc import Callable

from botorch.models.transforms.input import InputTransform
from botorch.optim.closures import ForwardBackwardClosure
from botorch.optim.core import scipy_minimize
from botorch.optim.utils import get_parameters_and_bounds
from botorch.utils.context_managers import module_rollback_ctx
from gpytorch import Module as GPyTorchModule
from linear_operator.utils.errors import NanError
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError

_INPUT_ITERATIONS = 25


def maximize_in_transform(transform: InputTransform, log_evidences: Callable[[], Tensor]) -> None:
    """Maximize the evidence of a mixture plus log priors in an input transform's parameters, in place."""
    whole = GPyTorchModule()  # which knows bounds and priors of all its parts
    whole.transform = transform
    parameters, bounds = get_parameters_and_bounds(whole, requires_grad=True)

    def loss() -> Tensor:
        try:
            value = log_evidences().logsumexp(-1).sum()
        except NumericalError as error:
            raise NanError(str(error)) from error  # which BoTorch's search takes for a bad point
        for _, module, prior, closure, _ in whole.named_priors():
            value = value + prior.log_prob(closure(module)).sum()
        return -value

    with module_rollback_ctx(whole) as before:  # where the search fails
        scipy_minimize(
            ForwardBackwardClosure(loss, parameters), parameters, bounds, options={"maxiter": _INPUT_ITERATIONS}
        )
        before.clear()
