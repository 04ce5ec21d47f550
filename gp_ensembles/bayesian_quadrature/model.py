"""The predictive distribution as a BoTorch model."""

from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.posterior import Posterior
from torch import Tensor

from gp_ensembles.bayesian_quadrature.hyperprior import Hyperparameters
from gp_ensembles.bayesian_quadrature.predict import RootMixture, condition, root_mixture
from gp_ensembles.bayesian_quadrature.problem import Problem
from gp_ensembles.bo.posterior import MixturePosterior


class KernelMixtureModel(Model):
    """Gaussian processes with R kernels, mixed with posterior weights.

    Args:
        problem: Data and prior mean.
        hyperparameters: The kernels, of batch shape (R,).
        log_weights: Their log weights, shape (R,).
        roots: Weights of products of roots between them, shape (R, R).
        roots_total: Sum of those weights over all evaluated kernels, shape (); over these if ``None``.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import *
        >>> X = torch.linspace(0, 3, 20, dtype=torch.float64).unsqueeze(-1)
        >>> problem = Problem(X, torch.sin(5.0 * X.squeeze(-1)))
        >>> model = marginalize(problem, Budget(40), progress=False, generator=torch.Generator().manual_seed(0)).model()
        >>> posterior = model.posterior(X[:4], observation_noise=True)
        >>> posterior.mean.shape, bool((posterior.variance > 0).all())
        (torch.Size([4, 1]), True)
    """

    def __init__(
        self,
        problem: Problem,
        hyperparameters: Hyperparameters,
        log_weights: Tensor,
        roots: Tensor,
        roots_total: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.hyperparameters = hyperparameters
        self.mean = problem.mean
        self.log_weights = log_weights
        self.roots = roots
        self.roots_total = roots.sum() if roots_total is None else roots_total
        self._conditioned = condition(hyperparameters, problem.X, problem.y, problem.reflection)

    @property
    def num_outputs(self) -> int:
        """One."""
        return 1

    @property
    def num_kernels(self) -> int:
        """Number of kernels R."""
        return self.log_weights.shape[0]

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        r"""The mixture of the kernels' joint predictions, weights positive.

        Args:
            X: Inputs, shape (\*batch, q, D).
            output_indices: ``None`` or [0].
            observation_noise: Whether to predict targets (with noise) or the function.
            posterior_transform: As in BoTorch.

        Raises:
            ValueError: If X has another number of inputs, another output is asked for, or the noise is a tensor.
        """
        if output_indices not in (None, [0]):
            raise ValueError(f"the model has one output, asked for {output_indices}")
        if isinstance(observation_noise, Tensor):
            raise ValueError("each kernel has its own noise variance; give observation_noise=True or False")
        self._check(X)
        mean, covariance = self._conditioned.predict(X)
        if observation_noise:
            noise = self.hyperparameters.noise.unsqueeze(-1).expand(-1, X.shape[-2])
            covariance = covariance + noise.diag_embed()
        posterior: Posterior = MixturePosterior(
            self.log_weights, (mean + self.mean).unsqueeze(-1), covariance.unsqueeze(-3)
        )
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def products_of_roots(self, X: Tensor) -> RootMixture:
        r"""The paper's mixture of products of roots for targets (noise included) at points (M, D), each on its own.

        Raises:
            ValueError: If X has another number of inputs.
        """
        return root_mixture(self.roots, *self.marginals(X), self.roots_total)

    def marginals(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Each kernel's means and variances of targets (noise included) at points (M, D): (R, M) each.

        Raises:
            ValueError: If X has another number of inputs.
        """
        self._check(X)
        mean, variance = self._conditioned.marginals(X)
        return mean + self.mean, variance + self.hyperparameters.noise.unsqueeze(-1)

    def _check(self, X: Tensor) -> None:
        if X.shape[-1] != self._conditioned.X.shape[-1] or X.ndim < 2:
            raise ValueError(f"inputs must have shape (..., q, {self._conditioned.X.shape[-1]}), got {tuple(X.shape)}")
