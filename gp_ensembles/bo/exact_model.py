"""Exact Gaussian processes with several kernels, weighed by their evidence, as one BoTorch model."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from operator import itemgetter
from typing import Any, Self, final

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.models.utils import check_min_max_scaling
from botorch.posteriors.posterior import Posterior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.mlls import MarginalLogLikelihood
from torch import Tensor

from gp_ensembles.bo import exact_kernels, fantasies
from gp_ensembles.bo.data import (
    Observations,
    check_training_data,
    check_varies,
    normal_likelihood,
    unit_scale,
    warn_of_noise,
)
from gp_ensembles.bo.default_ensemble import SMOOTHNESSES
from gp_ensembles.bo.exact_kernels import Hyperparameters, Kernels
from gp_ensembles.bo.fitting import fit_in_turn
from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.bo.posterior import MixtureOutcomeTransform, MixturePosterior
from gp_ensembles.numerics.display import fields_text
from gp_ensembles.numerics.exact_gp import Conditioned
from gp_ensembles.numerics.gpytorch_types import Kernel


@final
class ExactEnsembleModel(MixtureModel):
    r"""Exact Gaussian processes with RBF, Matern-5/2 and Matern-3/2 kernels, mixed with weights by their evidence.

    The same priors and weights as :func:`~gp_ensembles.bo.default_ensemble.kernel_ensemble`, without the error of
    finitely many features; at most about a thousand rows, for learning costs O(n³). All processes are fitted and
    evaluated as one batch, in double precision whatever the dtype of the rows.

    Args:
        train_X: Inputs, shape (n, D). With shape (\*b, n, D) they are those of a batch of data sets, as of the folds of
            cross-validation: each has hyperparameters and weights of its own, and posteriors have the batch shape
            (\*t, \*b).
        train_Y: Observations, shape (\*b, n, 1), in their order; rows that are NaN (in all data sets) are left out.
        train_Yvar: Known noise variances, shape (\*b, n, 1); inferred if ``None``.
        outcome_transform: As in ``SingleTaskGP``: ``Standardize`` by default, ``None`` for none; for a batch of
            data sets one with their ``batch_shape``.
        input_transform: As in ``SingleTaskGP``; one with parameters, such as ``Warp``, is learned by :meth:`fit`. It
            has to leave the categories' columns alone, and to put inputs about the unit cube. If ``None``, that is done
            by the range of each column of these rows; columns that fill a tenth or more of the unit interval stay.
        cat_dims: Columns of categories, as any numbers (of transformed inputs). Two different categories are at a
            distance of one, as the ends of the unit interval are, and each has a constant of unit prior variance.

    Raises:
        BotorchError: If a shape or dtype is wrong, a value is not finite, there is only one observation or more than
            one output; of a batch, the first data set that is wrong is described.
        ValueError: If a column of categories does not exist.

    Example:
        >>> import torch
        >>> X = torch.linspace(0, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> model = ExactEnsembleModel(X, (6 * X).sin()).fit()
        >>> bool((model.posterior(X).mean - (6 * X).sin()).abs().max() < 0.02)
        True
    """

    lengthscale: Tensor
    outputscale: Tensor
    noise: Tensor
    _shapes: Tensor
    _categorical: Tensor | None
    _cache: tuple[Observations, Conditioned] | None
    _computed = ("_cache",)
    _in_double = (*Hyperparameters._fields, "_shapes")

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        cat_dims: Sequence[int] | Tensor | None = (),
    ) -> None:
        data = _check_data_sets(train_X, train_Y, train_Yvar)
        batch = data.batch_shape
        if train_Y.shape[-1] > 1:
            raise UnsupportedError("exact processes have one output; build a model for each, and a ModelList of them")
        if isinstance(outcome_transform, _DefaultType):
            outcome_transform = Standardize(m=1, batch_shape=batch)
        outcomes = MixtureOutcomeTransform(outcome_transform)
        columns = [] if cat_dims is None else [int(column) for column in cat_dims]
        scale = unit_scale(data.X, columns) if input_transform is None else input_transform
        super().__init__(data, scale, outcomes)
        X = self._first_rows().X
        num_inputs = X.shape[-1]
        if any(not -num_inputs <= column < num_inputs for column in columns):
            raise ValueError(f"cat_dims must be some of the {num_inputs} columns of inputs, got {columns}")
        kernels = exact_kernels.make_kernels(SMOOTHNESSES, X, columns)
        numbers = X if kernels.categorical is None else X[..., ~kernels.categorical]
        if numbers.shape[-1]:
            check_min_max_scaling(numbers)  # warns: the priors of length scales are for the unit cube
        self.register_buffer("_shapes", kernels.shapes, persistent=False)
        self.register_buffer("_categorical", kernels.categorical, persistent=False)
        start = exact_kernels.initial_hyperparameters(kernels, num_inputs)
        for name, value in zip(Hyperparameters._fields, start, strict=True):
            self.register_buffer(name, value.expand(*batch, *value.shape).clone())

    @property
    def num_experts(self) -> int:
        """Number of processes M."""
        return self.noise.shape[-1]

    @property
    def hyperparameters(self) -> Hyperparameters:
        """Those of all processes, in double precision."""
        return Hyperparameters(self.lengthscale, self.outputscale, self.noise)

    def __repr__(self) -> str:
        return fields_text(self._sizes(), self.hyperparameters._asdict())

    @property
    def log_evidence(self) -> Tensor:
        r"""Log density of all targets, in transformed outcomes, under each process, shape (\*b, M)."""
        return self._learned()[1].log_density

    @property
    def log_weights(self) -> Tensor:
        r"""Log weights of the processes, shape (\*batch, M)."""
        own = self.log_evidence.log_softmax(-1).to(self.data.X)
        return fantasies.log_weights_after(self.joint, self.noise.to(own), self._rows_imagined, own)

    @property
    def likelihood(self) -> GaussianLikelihood | FixedNoiseGaussianLikelihood:
        """A likelihood with the processes' weighted mean noise, or the known noise; in transformed outcomes."""
        noise = (self.log_evidence.softmax(-1) * self.noise).sum(-1).to(self.data.X)
        return normal_likelihood(noise, self.rows().noise)

    @property
    def covar_module(self) -> Kernel:
        """A copy of the heaviest process' kernel, for those who read length scales, as TuRBO does.

        No kernel has the mixture's covariance; the constant is left out.

        Raises:
            AttributeError: If there are categories, for which GPyTorch has no such kernel, or several data sets.
        """
        if self.data.X.ndim > 2:
            raise AttributeError("each data set has its own kernel; read model.lengthscale")
        if self._categorical is not None:
            raise AttributeError("GPyTorch has no kernel of columns and categories together; read model.lengthscale")
        weights = self.log_weights.flatten(0, -2).mean(0) if self.batch_shape else self.log_weights
        heaviest = int(weights.argmax())
        nu, num_inputs = SMOOTHNESSES[heaviest], self.lengthscale.shape[-1]
        base = RBFKernel(ard_num_dims=num_inputs) if math.isinf(nu) else MaternKernel(nu, ard_num_dims=num_inputs)
        kernel: Kernel = ScaleKernel(base).to(self.data.X)
        base.lengthscale, kernel.outputscale = self.lengthscale[heaviest], self.outputscale[heaviest]
        return kernel

    def log_weights_at(self, X: Tensor) -> Tensor:
        """See :attr:`log_weights`: they are the same for all inputs."""
        return self.log_weights

    def joint(self, X: Tensor) -> MixturePosterior:
        r"""The mixture over the function at transformed points (\*t, q, D), before rows that are imagined."""
        rows, learned = self._learned()
        mean, covariance = exact_kernels.predict(self._kernels, self.hyperparameters, rows, learned, X.double())
        log_weights = learned.log_density.log_softmax(-1)
        return MixturePosterior(log_weights.to(X), mean.unsqueeze(-1).to(X), covariance.unsqueeze(-3).to(X))

    def predict(self, X: Tensor, noise: bool | Tensor) -> Posterior:
        return fantasies.predict(self.joint, self.noise.to(X), self._rows_imagined, X, noise)

    def learned(self, rows: Observations, data: Observations) -> Self:
        """The processes of all rows, with the same hyperparameters; weights are their evidence."""
        other = self._sibling()
        other.data, other._cache = data, None
        return other

    def prepare(self, rows: Observations) -> None:
        self._learned()

    def fit(self, start: Hyperparameters | None = None) -> Self:
        """Maximize the evidence of all rows, with priors, in place.

        Processes are fitted each by its own evidence, and parameters of the input transform in turn by that of them
        all; data sets of a batch one after another.

        Args:
            start: Where to begin besides the modes of the priors, such as the hyperparameters of fewer rows; each
                process takes the better end.

        Raises:
            InputDataError: If all observations are equal.
            NumericalError: If a covariance cannot be factorized.
        """
        if self._rows_imagined is not None:
            raise UnsupportedError("this model has no data; fit the model that it was derived from")
        self._enter_evaluation()
        for index in _indices(self.data.Y.shape[:-2]):
            check_varies(self.data.Y[index])
        starts = [] if start is None else [start]
        for given in starts:
            self._check_shapes(given)
        self._unshare()

        def fit_processes() -> None:
            self._fit(starts)
            starts[:] = [self.hyperparameters]

        fit_in_turn(self._input_transform, fit_processes, self._log_evidences)
        if self.data.noise is None:
            warn_of_noise(self.likelihood.noise, self.rows().Y)
        return self

    def with_hyperparameters_(self, hyperparameters: Hyperparameters) -> Self:
        """Take hyperparameters, in place."""
        self._check_shapes(hyperparameters)
        for name, value in zip(Hyperparameters._fields, hyperparameters, strict=True):
            setattr(self, name, value.detach().to(getattr(self, name)))
        self._cache = None
        return self

    def custom_fit(self, mll: MarginalLogLikelihood, **_: Any) -> MarginalLogLikelihood:
        """What BoTorch's ``fit_gpytorch_mll`` calls: :meth:`fit`."""
        return mll.eval() if self.fit() else mll

    def _check_shapes(self, hyperparameters: Hyperparameters) -> None:
        for name, value in zip(Hyperparameters._fields, hyperparameters, strict=True):
            wanted = getattr(self, name).shape
            if value.shape != wanted:
                raise ValueError(f"{name} must have shape {tuple(wanted)}, got {tuple(value.shape)}")

    def _fit(self, starts: Sequence[Hyperparameters]) -> None:
        with torch.no_grad():
            rows, batch, found = self._own_rows(), self.data.X.shape[:-2], []
            modes = exact_kernels.initial_hyperparameters(self._kernels, rows.X.shape[-1])
            for index in _indices(batch):
                own = [Hyperparameters(*(value[index] for value in start)) for start in starts]
                some = rows.map(itemgetter(index))
                more = exact_kernels.short_start(self._kernels, some, modes)
                found.append(exact_kernels.fit(self._kernels, some, [*own, modes, *more]))
        each = (torch.stack(values).reshape(*batch, *values[0].shape) for values in zip(*found, strict=True))
        self.with_hyperparameters_(Hyperparameters(*each))

    def _log_evidences(self) -> Tensor:
        return exact_kernels.condition(self._kernels, self._own_rows(), self.hyperparameters).log_density

    @property
    def _kernels(self) -> Kernels:
        return Kernels(self._shapes, self._categorical)

    def _own_rows(self) -> Observations:
        return self.rows().map(Tensor.double)

    @torch.no_grad()
    def _learned(self) -> tuple[Observations, Conditioned]:
        if self._cache is None:
            rows = self._own_rows()
            self._cache = rows, exact_kernels.condition(self._kernels, rows, self.hyperparameters)
        return self._cache


def _indices(batch: torch.Size) -> Iterator[tuple[int, ...]]:
    """The index of every data set of a batch; the empty index for one alone."""
    return product(*map(range, batch))


def _check_data_sets(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> Observations:
    """The rows of data sets that have targets, each data set checked."""
    given = [part for part in (X, Y, Yvar) if part is not None]
    if not all(isinstance(part, Tensor) for part in given) or max(X.ndim, Y.ndim) < 3:
        return check_training_data(X, Y, Yvar)
    batch = X.shape[:-2]
    if 0 in batch or any(part.shape[:-2] != batch for part in given):
        raise BotorchTensorDimensionError(
            f"inputs, targets and their noise must have the same batch of data sets, got shapes "
            f"{[tuple(part.shape) for part in given]}"
        )
    for index in _indices(batch):
        check_training_data(X[index], Y[index], None if Yvar is None else Yvar[index])
    return Observations(X, Y, Yvar).observed()
