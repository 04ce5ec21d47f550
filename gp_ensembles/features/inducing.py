"""Features of a Gaussian process at inducing points (knots): the Nystroem approximation of any kernel."""

from typing import final

import torch
from gpytorch.settings import debug
from torch import Tensor, nn

from gp_ensembles.features.base import BoundFeatures, FeatureMap, check_matrix, expand_batch, insert_batch
from gp_ensembles.features.covariance import bind_covariance
from gp_ensembles.numerics.cholesky import NumericalError, cholesky
from gp_ensembles.numerics.exact_gp import Covariance
from gp_ensembles.numerics.gpytorch_types import Kernel

RELATIVE_NUGGET = 1e-6


@final
class InducingPointFeatures(FeatureMap):
    r"""Covariances with K knots, decorrelated: the Nystroem features of a kernel.

    .. math::
        \phi(x) = L^{-1} k_Z(x) / v, \qquad L L^\top = K_{ZZ} / v + \delta I, \qquad
        v = \tfrac1K \sum_k k(z_k, z_k)

    (Williams and Seeger, 2001; Quinonero-Candela and Rasmussen, 2005). The model is the subset of regressors: a filter
    on these features has, after every row, the posterior of a sparse Gaussian process with these knots, exactly. For a
    stationary kernel v, the :attr:`prior_variance`, is the sum of its output scales.

    The features vanish far from all knots, and with them the variance that the knots do not know:
    :meth:`unexplained` is the variance of the Gaussian process that they miss.

    Knots given as a plain tensor stay fixed (a buffer); knots given as an ``nn.Parameter`` are trained, each expert
    its own copy.

    Args:
        kernel: Any GPyTorch kernel of one output; kept, not copied. Its batch is the map's.
        knots: Knots Z, in units of the inputs, shape (K, D) or (\*batch, K, D).
        nugget: :math:`\delta`, a share of the kernel's average variance at the knots, a number or shape (\*batch).

    Raises:
        ValueError: If a shape does not fit the kernel, a knot is not finite, or the nugget is negative.
        TypeError: If knots are not a floating point tensor of the kernel's dtype.
        NumericalError: From ``bind``, if knots coincide and the nugget is too small.

    Example:
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 9, dtype=torch.float64).unsqueeze(-1)
        >>> features = InducingPointFeatures(ScaleKernel(RBFKernel()).double(), X[::2])
        >>> features(X).shape, bool(features.unexplained(X).max() < 1e-3)
        (torch.Size([9, 5]), True)
    """

    knots: Tensor
    nugget: Tensor

    def __init__(self, kernel: Kernel, knots: Tensor, nugget: float | Tensor = RELATIVE_NUGGET) -> None:
        check_matrix(knots)
        batch_shape = torch.Size(kernel.batch_shape)
        if knots.shape[:-2] not in (torch.Size(), batch_shape):
            raise ValueError(
                f"knots must have shape (K, D) or {(*batch_shape, 'K', 'D')} for a kernel with batch shape "
                f"{tuple(batch_shape)}, got {tuple(knots.shape)}; stack_kernels makes one kernel of several"
            )
        shares = torch.as_tensor(nugget, dtype=knots.dtype, device=knots.device).detach()
        if shares.device.type != "meta" and not bool((torch.isfinite(shares) & (shares >= 0.0)).all()):
            raise ValueError(f"the nugget must be a finite share of the variance, at least 0, got {nugget}")
        if shares.shape not in (torch.Size(), batch_shape):
            raise ValueError(
                f"the nugget must be a number or have shape {tuple(batch_shape)}, got {tuple(shares.shape)}"
            )
        if any(value.dtype != knots.dtype for value in kernel.parameters()):
            raise TypeError(f"the knots are {knots.dtype} and the kernel is not; convert one with .to(...)")
        num_knots, num_inputs = knots.shape[-2:]
        super().__init__(num_inputs, num_knots, batch_shape)
        start = knots.detach().expand(*batch_shape, num_knots, num_inputs).clone()
        if isinstance(knots, nn.Parameter):
            self.register_parameter("knots", nn.Parameter(start))
        else:
            self.register_buffer("knots", start)
        self.register_buffer("nugget", shares.expand(batch_shape).clone())
        self.kernel = kernel
        self._check_kernel()

    @property
    def prior_variance(self) -> Tensor:
        r"""Average variance v of the kernel at the knots, shape (\*batch), differentiable."""
        return bind_covariance(self.kernel).diagonal(self.knots).mean(-1)

    def bind(self) -> BoundFeatures:
        """Read knots and hyperparameters and factorize once; the result is a plain function of tensors."""
        return self._bind(bind_covariance(self.kernel))

    def unexplained(self, X: Tensor) -> Tensor:
        r"""Prior variance that the knots leave open, :math:`k(x, x) - v\,\phi(x)^\top\phi(x)`, at least zero.

        Added to the variance that an expert predicts (static weights), it makes that of the deterministic training
        conditional, which is the prior's far from all knots, and the variational approximation's.

        Args:
            X: Inputs, shape (..., N, D).

        Returns:
            In squared units of the target, shape (..., \*batch, N).

        Raises:
            ValueError: If X has the wrong number of columns or is not finite.
        """
        self.check_inputs(X)
        covariance = bind_covariance(self.kernel)
        prior = covariance.diagonal(expand_batch(X, self.batch_shape))
        variance = covariance.diagonal(self.knots).mean(-1)
        explained = variance.unsqueeze(-1) * self._bind(covariance)(X).square().sum(-1)
        return (prior - explained).clamp_min(0.0)

    def _check_kernel(self) -> None:
        """Raise unless the kernel gives every pair of knots a covariance, and some knot a variance."""
        if self.knots.device.type == "meta":
            return
        with torch.no_grad(), debug(True):
            try:
                shape = self.kernel(self.knots, self.knots).to_dense().shape
            except RuntimeError as error:
                raise ValueError(f"the kernel does not take the knots' {self.num_inputs} columns: {error}") from error
            wanted = (*self.batch_shape, self.num_features, self.num_features)
            if shape != wanted:
                raise ValueError(
                    f"the kernel's matrix of {self.num_features} knots has shape {tuple(shape)} instead of {wanted}; "
                    f"the kernel must have one output and the map's batch shape"
                )
            variance = self.prior_variance
            if not bool(((variance > 0.0) & torch.isfinite(variance)).all()):
                raise ValueError("the kernel has no finite, positive variance at the knots; move them or the kernel")

    def _bind(self, covariance: Covariance) -> BoundFeatures:
        batch_shape, knots = self.batch_shape, self.knots.clone()
        diagonal = covariance.diagonal(knots)
        variance = diagonal.mean(-1, keepdim=True)  # (*batch, 1)
        own = covariance.between(knots, knots)
        on_diagonal = torch.diag_embed(torch.ones_like(diagonal, dtype=torch.bool))
        # Distances of a knot from itself are round-off, and their derivatives, too.
        own = torch.where(on_diagonal, (diagonal + self.nugget.unsqueeze(-1) * variance).unsqueeze(-1), own)
        scale = variance.unsqueeze(-1)
        lower = _factorize(own / scale)
        identity = torch.diag_embed(torch.ones_like(diagonal))
        weight = torch.linalg.solve_triangular(lower, identity, upper=False) / scale

        def features(X: Tensor) -> Tensor:
            rows = insert_batch(X, batch_shape)
            seen: Tensor = weight @ covariance.between(knots, rows)
            return seen.mT

        return features


def _factorize(own: Tensor) -> Tensor:
    try:
        return cholesky(own, "the covariance of the knots")
    except NumericalError as error:
        text, _, _ = str(error).partition(";")
        raise NumericalError(f"{text}; use float64, a larger nugget, or knots further apart") from error
