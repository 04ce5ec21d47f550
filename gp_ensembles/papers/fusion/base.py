"""The base of all fusion models: a flat vector of parameters, a log joint density, a predictive mixture."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.numerics.draws import normal_draws
from gp_ensembles.papers.fusion.experts import ExpertPredictions
from gp_ensembles.papers.fusion.function_priors import FourierPrior
from gp_ensembles.papers.rows import check_finite, check_rows

_DRAWS = 64  # draws whose bases are held in memory at once


class PredictiveComponents(NamedTuple):
    """Normal components of a predictive density at N inputs, for draws of the parameters; noise is in the variance.

    Shapes: (..., K, N), of means and variances (K, N) if no parameter enters them; weights sum to one over K.
    """

    log_weights: Tensor
    mean: Tensor
    variance: Tensor


class FusionModel(ABC):
    r"""A Bayesian model of targets whose parameters are coefficients of functions, and perhaps hyperparameters.

    All methods take parameters as flat vectors with leading axes for chains and draws, (..., P), so that a sampler
    moves many chains as one tensor; the gradient for every chain is that of the sum over chains. Coefficients have
    standard normal priors; hyperparameters that are sampled stand as logarithms.

    Args:
        X: Training inputs, shape (N, D). Scale them to the length scales of the priors.
        y: Training targets, shape (N,) or (N, 1); rows whose target is NaN are left out. Functions have prior mean
            zero: center them.
        functions: The prior of the functions of each name, and their number. Sampled hyperparameters belong to
            the name: two names with one prior object have their own each.

    Raises:
        TypeError: If a function prior does not share the dtype and device of the inputs.
        ValueError: If shapes do not fit, or values are not finite.
    """

    y: Tensor
    num_experts: int

    def __init__(self, X: Tensor, y: Tensor, functions: Mapping[str, tuple[FourierPrior, int]]) -> None:
        y, seen = check_rows(X, y)
        self.X, self.y = X[seen].detach(), y[seen].detach()
        self.priors: dict[str, FourierPrior] = {name: prior for name, (prior, _) in functions.items()}
        # Block name -> shape, in the order of the blocks in a vector of parameters.
        self.blocks: dict[str, tuple[int, ...]] = {}
        means, stddevs = [], []
        for name, (prior, num_functions) in functions.items():
            center = prior.log_hyperparameters
            if center.dtype != X.dtype or center.device != X.device:
                raise TypeError(
                    f"a function prior is {center.dtype} on {center.device}, the inputs are {X.dtype} on {X.device}; "
                    "give both the same dtype and device"
                )
            self.blocks[name] = (num_functions, prior.num_coefficients)
            means.append(X.new_zeros(math.prod(self.blocks[name])))
            stddevs.append(torch.ones_like(means[-1]))
            if prior.prior_stddev is not None and num_functions:
                self.blocks[hyperparameter_block(name)] = (len(center),)
                means.append(center)
                stddevs.append(torch.full_like(center, prior.prior_stddev))
        self._sizes = [math.prod(shape) for shape in self.blocks.values()]
        # Prior mean and standard deviation of each parameter.
        self.prior_mean: Tensor = torch.cat(means)
        self.prior_stddev: Tensor = torch.cat(stddevs)
        # Names whose functions have sampled hyperparameters; the bases of the others are computed once.
        self.sampled: list[str] = [name for name in self.priors if hyperparameter_block(name) in self.blocks]
        self._log_normalizer = -float(self.prior_stddev.log().sum()) - 0.5 * self.num_parameters * math.log(2 * math.pi)
        self._bases = {
            name: prior.basis(self.X).contiguous() for name, prior in self.priors.items() if name not in self.sampled
        }

    @abstractmethod
    def log_likelihood(self, theta: Tensor) -> Tensor:
        """Log likelihood of each training target given the parameters (..., P), shape (..., N)."""

    @abstractmethod
    def weigh(self, values: Mapping[str, Tensor]) -> Tensor:
        """Log weights of the K experts, shape (..., K, N), from the values (..., number, N) of the functions by name.

        Weights sum to one over the experts in a linear pool, but need not in a log-linear one.
        """

    @abstractmethod
    def combine(
        self, X: Tensor, values: Mapping[str, Tensor], log_weights: Tensor, predictions: ExpertPredictions | None
    ) -> PredictiveComponents:
        """Normal components of the density of y at inputs X (N, D), given the values of the functions and the weights.

        Models that stack fixed experts take the experts' predictions at X, others none.

        Raises:
            ValueError: If predictions are missing or superfluous, or do not fit.
        """

    def log_weights(self, theta: Tensor, X: Tensor) -> Tensor:
        """Log weights of the K experts at inputs X (N, D), given the parameters (..., P), shape (..., K, N)."""
        return self.weigh(self.values_at(theta, X))

    def components(
        self, theta: Tensor, X: Tensor, predictions: ExpertPredictions | None = None
    ) -> PredictiveComponents:
        """Normal components of the density of y at inputs X (N, D), given parameters (..., P) and fixed experts.

        Raises:
            ValueError: If shapes do not fit, or predictions are missing or superfluous.
        """
        values = self.values_at(theta, X)
        return self.combine(X, values, self.weigh(values), predictions)

    @property
    def num_parameters(self) -> int:
        """Number of parameters P; zero for the stacking of a single expert."""
        return sum(self._sizes)

    def unpack(self, theta: Tensor) -> dict[str, Tensor]:
        """The blocks of parameters (..., P) by name.

        Coefficients (..., number, P_prior) are under the name of the functions, and the logarithms (..., H) that are
        sampled under that name with ``_hyperparameters``.

        Raises:
            ValueError: If the last axis is not P long.
        """
        if not theta.ndim or theta.shape[-1] != self.num_parameters:
            raise ValueError(
                f"this model has {self.num_parameters} parameters, but theta has shape {tuple(theta.shape)}"
            )
        parts = zip(self.blocks.items(), theta.split(self._sizes, -1), strict=True)
        return {name: part.unflatten(-1, shape) for (name, shape), part in parts}

    def pack(self, blocks: Mapping[str, Tensor]) -> Tensor:
        """Parameters (..., P) from their blocks; the inverse of :meth:`unpack`.

        Raises:
            ValueError: If a block is missing or unknown.
        """
        if set(blocks) != set(self.blocks):
            raise ValueError(f"the blocks must be {list(self.blocks)}, got {list(blocks)}")
        return torch.cat([blocks[name].flatten(-len(shape)) for name, shape in self.blocks.items()], -1)

    def draw_prior(self, num: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws of the parameters from their prior, shape (num, P)."""
        noise = normal_draws((num, self.num_parameters), self.X, generator)
        return self.prior_mean + self.prior_stddev * noise

    def log_prior(self, theta: Tensor) -> Tensor:
        """Log prior density of the parameters (..., P), normalized, shape (...)."""
        standard = (theta - self.prior_mean) / self.prior_stddev if self.sampled else theta
        return self._log_normalizer - 0.5 * standard.square().sum(-1)

    def log_joint(self, theta: Tensor) -> Tensor:
        """Log density of parameters (..., P) and training targets, shape (...)."""
        return self.log_prior(theta) + self.log_likelihood(theta).sum(-1)

    def values(self, theta: Tensor) -> dict[str, Tensor]:
        """Values of the functions at the training inputs, by name, each (..., number, N)."""
        blocks = self.unpack(theta)
        values = {}
        for name, prior in self.priors.items():
            if name in self._bases:
                # One product for all chains: matmul itself would make one for each, as the block is a strided view.
                flat = blocks[name].reshape(-1, blocks[name].shape[-1])
                values[name] = (flat @ self._bases[name]).unflatten(0, blocks[name].shape[:-1])
            else:
                values[name] = prior.evaluate(blocks[name], self.X, blocks[hyperparameter_block(name)])
        return values

    def values_at(self, theta: Tensor, X: Tensor) -> dict[str, Tensor]:
        """Values of the functions at new inputs X (N, D), by name, each (..., number, N).

        Raises:
            ValueError: If the shape or dtype of the inputs does not fit, or one is not finite.
        """
        _check_new_inputs(X, self.X)
        blocks = self.unpack(theta)
        return {
            name: blocks[name] @ prior.basis(X, blocks.get(hyperparameter_block(name)))
            for name, prior in self.priors.items()
        }

    def predictive(
        self,
        theta: Tensor,
        X: Tensor,
        predictions: ExpertPredictions | None = None,
        *,
        draw_log_weights: Tensor | None = None,
    ) -> Mixture:
        """Density of y at inputs X (N, D), averaged over draws (S, P) of the parameters: a mixture over both.

        The mixture is over components alone if the draws differ in weights only. Log weights of the draws (S,) are
        normalized here, and even if ``None``.

        Raises:
            ValueError: If shapes do not fit, or there is no draw.
        """
        if theta.ndim != 2 or not theta.shape[0]:
            raise ValueError(f"draws of the parameters must be (S, P) with S at least 1, got {tuple(theta.shape)}")
        if draw_log_weights is None:
            draw_log_weights = theta.new_zeros(theta.shape[0])
        if draw_log_weights.shape != theta.shape[:1]:
            raise ValueError(
                f"{theta.shape[0]} draws need as many log weights, got shape {tuple(draw_log_weights.shape)}"
            )
        # Some draws at a time: bases of sampled hyperparameters are large.
        parts = [self.components(some, X, predictions) for some in theta.split(_DRAWS)]
        joint = torch.cat([part.log_weights for part in parts]) + draw_log_weights.log_softmax(0)[:, None, None]
        _, mean, variance = parts[0]
        if mean.ndim == 2:
            # Draws share the components: their average is the mixture with averaged weights, exactly.
            return Mixture(joint.logsumexp(0), mean, variance)
        means, variances = (torch.cat([part[index] for part in parts]).flatten(0, 1) for index in (1, 2))
        return Mixture(joint.flatten(0, 1), means, variances)


def hyperparameter_block(name: str) -> str:
    """Name of the block of the sampled hyperparameters of some functions."""
    return f"{name}_hyperparameters"


def _check_new_inputs(X: Tensor, like: Tensor) -> None:
    """Refuse new inputs that do not fit the training inputs."""
    if X.ndim != 2 or X.shape[-1] != like.shape[-1] or X.dtype != like.dtype or X.device != like.device:
        raise ValueError(
            f"inputs must be (N, {like.shape[-1]}) of {like.dtype} on {like.device} as in training, got "
            f"{tuple(X.shape)} of {X.dtype} on {X.device}"
        )
    check_finite("inputs", X)
