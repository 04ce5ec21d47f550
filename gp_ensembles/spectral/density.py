"""Spectral densities of stationary GPyTorch kernels."""

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple, cast

from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from gp_ensembles.numerics.gpytorch_types import Kernel


class StationaryForm(NamedTuple):
    r"""A stationary kernel, decomposed: :math:`c\,\kappa(\|(x - x') / \ell\|)`."""

    outputscale: Tensor  # output scale c, (*batch) or one that broadcasts to it
    lengthscale: Tensor  # length scales, (*batch, 1, D) or (*batch, 1, 1)
    # logarithm of the spectral density of \kappa in d dimensions, as a function of the squared norm of the angular
    # frequency (any shape) and of d
    log_density: Callable[[Tensor, int], Tensor]
    # least half-width, in length scales, of a box whose sines and cosines represent the kernel; the value for
    # Matern-3/2, the largest recommended, where nothing else is said
    box_factor: float = 4.5


def registered(dispatcher: Any, kernel: object, what: str) -> Callable[..., Any]:
    """The function of exactly a kernel's class: a subclass may compute another kernel."""
    if type(kernel) in dispatcher.registry:
        return cast(Callable[..., Any], dispatcher.registry[type(kernel)])
    names = sorted(kind.__name__ for kind in dispatcher.registry if kind is not object)
    raise TypeError(
        f"{type(kernel).__name__} has no registered {what}; supported are {', '.join(names)}, and others can be added "
        f"with {dispatcher.__module__}.{dispatcher.__name__}.register"
    )


@singledispatch
def stationary_form(kernel: Kernel, num_inputs: int) -> StationaryForm:
    """Output scale, length scales and spectral density; register a function for your own kernel class.

    Raises:
        TypeError: If the kernel's class is not registered.
    """
    return form_of(kernel, num_inputs)


def form_of(kernel: Kernel, num_inputs: int) -> StationaryForm:
    """:func:`stationary_form` for exactly the registered classes."""
    form: StationaryForm = registered(stationary_form, kernel, "spectral density")(kernel, num_inputs)
    return form


@stationary_form.register(RBFKernel)
def _rbf(kernel: RBFKernel, num_inputs: int) -> StationaryForm:
    def log_density(squared: Tensor, dimension: int) -> Tensor:
        return 0.5 * dimension * math.log(2.0 * math.pi) - 0.5 * squared

    lengthscale = lengthscale_of(kernel, num_inputs)
    return StationaryForm(lengthscale.new_ones(kernel.batch_shape), lengthscale, log_density, 3.2)


@stationary_form.register(MaternKernel)
def _matern(kernel: MaternKernel, num_inputs: int) -> StationaryForm:
    nu = float(kernel.nu)

    def log_density(squared: Tensor, dimension: int) -> Tensor:
        power = nu + 0.5 * dimension
        constant = dimension * math.log(2.0) + 0.5 * dimension * math.log(math.pi) + nu * math.log(2.0 * nu)
        return constant + math.lgamma(power) - math.lgamma(nu) - power * (2.0 * nu + squared).log()

    lengthscale = lengthscale_of(kernel, num_inputs)
    # Matern-1/2 is not among the recommendations; the rule for the edges (features.box_from_data) suffices there
    box_factor = 4.1 if nu == 2.5 else 4.5
    return StationaryForm(lengthscale.new_ones(kernel.batch_shape), lengthscale, log_density, box_factor)


@stationary_form.register(ScaleKernel)
def _scale(kernel: ScaleKernel, num_inputs: int) -> StationaryForm:
    form = form_of(kernel.base_kernel, num_inputs)
    return form._replace(outputscale=kernel.outputscale * form.outputscale)


def log_spectral_density(kernel: Kernel, frequencies: Tensor) -> Tensor:
    r"""Logarithm of the spectral density of the kernel without its output scale.

    .. math:: S(\omega) = \int \kappa(r)\, e^{-i \omega^\top r}\, dr
              = \Big(\prod_j \ell_j\Big) S_1(\|\ell \circ \omega\|)

    Shapes: ``frequencies`` (\*batch, R, D); returns (\*batch, R).
    """
    num_inputs = frequencies.shape[-1]
    form = form_of(kernel, num_inputs)
    lengthscale = form.lengthscale.expand(*form.lengthscale.shape[:-1], num_inputs)
    squared = (lengthscale * frequencies).square().sum(-1)
    return lengthscale.log().sum(-1) + form.log_density(squared, num_inputs)


def lengthscale_of(kernel: Kernel, num_inputs: int) -> Tensor:
    r"""The length scales, shape (\*batch, 1, D) or (\*batch, 1, 1), in units of the inputs."""
    lengthscale: Tensor = kernel.lengthscale
    if lengthscale.shape[-1] not in (1, num_inputs):
        raise ValueError(
            f"{type(kernel).__name__} has {lengthscale.shape[-1]} length scales but sees {num_inputs} input "
            f"column(s); set ard_num_dims or active_dims to match"
        )
    return lengthscale
