"""Exact Gaussian processes with several kernels, weighted by their evidence, as one BoTorch model."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from operator import itemgetter
from typing import Any, Self, final

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.models.utils import check_min_max_scaling
from botorch.optim.closures import ForwardBackwardClosure
from botorch.optim.core import scipy_minimize
from botorch.optim.utils import get_parameters_and_bounds
from botorch.utils.context_managers import module_rollback_ctx
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch import Module as GPyTorchModule
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.mlls import MarginalLogLikelihood
from linear_operator import to_linear_operator
from linear_operator.utils.errors import NanError
from torch import Tensor

from gp_ensembles.bo import exact_kernels
from gp_ensembles.bo.data import (
    Observations,
    check_observations,
    check_training_data,
    is_flat,
    normal_likelihood,
    unit_scale,
    warn_of_noise,
)
from gp_ensembles.bo.exact_kernels import Hyperparameters, Kernels, starts_of_fit
from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.bo.posterior import MixturePosterior, resampled
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.display import block_text, fields_text
from gp_ensembles.numerics.exact_gp import Conditioned
from gp_ensembles.numerics.gpytorch_types import Kernel

_ROUNDS = 3  # alternations between fitting a trainable input transform and the processes
_INPUT_ITERATIONS = 25


@final
class ExactEnsembleModel(MixtureModel):
    r"""Exact Gaussian processes with Matern and RBF kernels: one, or several weighted by their evidence.

    Length scales and noise have the priors of ``SingleTaskGP``, dimension-scaled for the former (Hvarfner et al. 2024);
    output scales have a log-normal prior around one, and a constant of unit prior variance is added: observations
    cluster near an optimum, far from the mean elsewhere. Learning costs O(n³), in double precision whatever the dtype
    of the rows. With one kernel, posteriors are normal; with several, a :class:`MixturePosterior`.

    Args:
        train_X: Inputs, shape (n, D), or (\*b, n, D) for a batch of data sets, such as cross-validation folds.
        train_Y: Observations, shape (\*b, n, O); rows that are NaN (in all data sets and outputs) are left out. Each
            data set and output has its own hyperparameters and weights.
        train_Yvar: Known noise variances, shape (\*b, n, O); inferred if ``None``.
        outcome_transform: As in ``SingleTaskGP``: ``Standardize`` by default, ``None`` for none.
        input_transform: As in ``SingleTaskGP``, for the numeric columns; it must map them to roughly the unit cube,
            and :meth:`fit` learns its parameters. If ``None``, each column is scaled by its range in these rows;
            columns within the unit interval that cover a tenth or more of it are left unchanged.
        cat_dims: Categorical columns, coded as any numbers. Two different categories are at a distance of one, as the
            ends of the unit interval are, and each has a constant of unit prior variance.
        kernels: Smoothness of each process: 1.5 or 2.5 of a Matern kernel, infinity for the RBF kernel.
        members: ``None`` for the mixture, in which fantasies update the weights. A number makes it a fully Bayesian
            model as in BoTorch, with that many equally weighted processes (each kernel in proportion to its weight),
            over which formulas for one normal distribution are averaged; for one data set, without fantasies.
        **options: None; arguments that only ``SingleTaskGP`` has raise an error that names the alternative.

    Raises:
        BotorchError: If a shape or dtype is wrong, a value is not finite, or there is no observation.
        ValueError: If a categorical column does not exist, or a smoothness or the number of members is invalid.

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
    smoothness: Tensor
    _shapes: Tensor
    _categorical: Tensor | None
    _cache: tuple[Observations, Conditioned] | None
    _in_double = (*Hyperparameters._fields, "smoothness", "_shapes")

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        cat_dims: Sequence[int] | Tensor | None = (),
        *,
        kernels: Sequence[float] = (2.5,),
        members: int | None = None,
        **options: Any,
    ) -> None:
        _refuse(options)
        data = check_training_data(train_X, train_Y, train_Yvar)
        if members is not None and (type(members) is not int or members < 1 or data.X.ndim > 2):
            raise ValueError(f"members must be >= 1, for X of shape (n, D); got {members!r} and {tuple(data.X.shape)}")
        if isinstance(outcome_transform, _DefaultType):
            outcome_transform = Standardize(m=train_Y.shape[-1], batch_shape=data.X.shape[:-2])
        columns = [] if cat_dims is None else [int(column) for column in cat_dims]
        scale = unit_scale(data.X, columns) if input_transform is None else None
        super().__init__(data, input_transform, outcome_transform, scale)
        self.members = members
        X = self._first_rows().X
        num_inputs = X.shape[-1]
        if any(not -num_inputs <= column < num_inputs for column in columns):
            raise ValueError(f"cat_dims must be among the {num_inputs} input columns, got {columns}")
        own = exact_kernels.make_kernels(kernels, X, columns)
        self.kernels = tuple(float(nu) for nu in kernels)
        self.is_normal = members is None and len(self.kernels) == 1
        self._is_fully_bayesian = self._is_ensemble = members is not None
        self._supports_cache_root = members is not None or self.is_normal
        numbers = X if own.categorical is None else X[..., ~own.categorical]
        if numbers.shape[-1]:
            check_min_max_scaling(numbers)  # warns: the priors of length scales are for the unit cube
        self.register_buffer("_shapes", own.shapes, persistent=False)
        self.register_buffer("smoothness", own.shapes.new_tensor(self.kernels))
        self.register_load_state_dict_pre_hook(_check_kernels)  # type: ignore[no-untyped-call]
        self.register_buffer("_categorical", own.categorical, persistent=False)
        start = exact_kernels.initial_hyperparameters(own, num_inputs)
        for name, value in zip(Hyperparameters._fields, start, strict=True):
            self.register_buffer(name, value.expand(*self._aug_batch_shape, *value.shape).clone())
        self.training = True  # initial mode of BoTorch's models; the transforms have been fitted

    @property
    def num_experts(self) -> int:
        return self.noise.shape[-1]

    @property
    def hyperparameters(self) -> Hyperparameters:
        """Hyperparameters of all processes, in double precision."""
        return Hyperparameters(self.lengthscale, self.outputscale, self.noise)

    def __repr__(self) -> str:
        if self.data.X.ndim > 2 or self._fantasies is not None:
            return fields_text(self._sizes(), self.hyperparameters._asdict())
        values = (*self.hyperparameters, self.log_weights.exp())
        every, lines = [value.reshape(-1, *value.shape[self.noise.ndim :]).tolist() for value in values], []
        for number, (scales, scale, noise, weight) in enumerate(zip(*every, strict=True)):
            nu = self.kernels[number % self.num_experts]
            output = f"output {number // self.num_experts}: " if self.num_outputs > 1 else ""
            name = "rbf" if math.isinf(nu) else f"matern {nu:g}"
            lengths = ", ".join(f"{length:.3g}" for length in scales)
            lines.append(
                f"{output}{name}: weight {weight:.2f}, noise {noise:.2g}, output scale {scale:.3g}, "
                f"length scales {lengths}"
            )
        return block_text(self._sizes(), lines)

    @property
    def log_evidence(self) -> Tensor:
        r"""Log density of all targets, in transformed outcomes, under each process, shape (\*b, M) or (\*b, O, M)."""
        return self._learned()[1].log_density

    @property
    def log_weights(self) -> Tensor:
        r"""Log weights of the processes, shape (\*batch, M), or (\*batch, O, M) for several outputs."""
        if self._fantasies is None:
            return self.log_evidence.log_softmax(-1).to(self.data.X)
        after = self.predict(self.rows().X[..., :1, :], False).log_weights
        return after.expand(*self.batch_shape, *self.noise.shape[self.data.X.ndim - 2 :])

    @property
    def likelihood(self) -> GaussianLikelihood | FixedNoiseGaussianLikelihood:
        """With the known noise, the processes' weighted mean noise, or each member's own, in transformed outcomes."""
        known, noise = self._seen().noise, self.noise.to(self.data.X)
        if self.members is None:
            noise = (self.log_evidence.softmax(-1).to(noise) * noise).sum(-1)
        elif known is None:
            noise = self._of_members(noise, 0)
        return normal_likelihood(noise, known if known is None or self.num_outputs == 1 else known.mT)

    @property
    def covar_module(self) -> Kernel:
        """A copy of the kernel of the heaviest process, without its constant, for TuRBO; one output, no categories."""
        if self._aug_batch_shape or self._categorical is not None:
            raise AttributeError("covar_module")  # torch turns this into its own message
        heaviest = int(self.log_weights.reshape(-1, self.num_experts).mean(0).argmax())
        nu, num_inputs = self.kernels[heaviest], self.lengthscale.shape[-1]
        base = RBFKernel(ard_num_dims=num_inputs) if math.isinf(nu) else MaternKernel(nu, ard_num_dims=num_inputs)
        kernel: Kernel = _Scaled(base).to(self.data.X)
        base.lengthscale, kernel.outputscale = self.lengthscale[heaviest], self.outputscale[heaviest]
        return kernel

    def joint(self, X: Tensor) -> MixturePosterior:
        r"""The mixture over the function at transformed points (\*t, q, D), before any fantasies."""
        rows, learned = self._learned()
        mean, covariance = exact_kernels.predict(self._kernels, self.hyperparameters, rows, learned, self._points(X))
        log_weights = learned.log_density.log_softmax(-1).to(X)
        if self.members is not None:
            mean, covariance = self._of_members(mean, 1), self._of_members(covariance, 2)
            log_weights = log_weights.new_full((*log_weights.shape[:-1], self.members), -math.log(self.members))
        if self.num_outputs == 1:
            return MixturePosterior(log_weights, mean.unsqueeze(-1).to(X), covariance.unsqueeze(-3).to(X))
        mean, covariance = mean.movedim(-3, -1), covariance.transpose(-4, -3)  # from (*t, O, M, q), (*t, O, M, q, q)
        return MixturePosterior(log_weights, mean.to(X), covariance.to(X))

    def predict(self, X: Tensor, noise: bool | Tensor) -> MixturePosterior:
        own = (self.noise if self.members is None else self._of_members(self.noise, 0)).to(X)
        own = own.unsqueeze(-1) if self.num_outputs == 1 else own.mT
        return self.after(self._fantasies, own, X, noise)

    def forward(self, X: Tensor) -> MultivariateNormal:
        """The prior at X (raw in training, else transformed), for every member; not defined for mixtures."""
        if self.members is None and not self.is_normal:
            raise UnsupportedError("a mixture has no single prior; use one kernel, or members=K")
        X = self._without_batch(X)
        inputs = self._points(self._scaled(self.transform_inputs(X) if self.training else X))
        covariance = exact_kernels.covariance_between(self._kernels, self.hyperparameters, inputs, inputs).to(X)
        covariance = covariance.squeeze(-3) if self.members is None else self._of_members(covariance, 2)
        return MultivariateNormal(covariance[..., 0].new_zeros(covariance.shape[:-1]), to_linear_operator(covariance))

    def processes(self) -> tuple[Kernels, Observations, Conditioned]:
        r"""Kernels, rows (\*data_sets, n, D) and (\*data_sets, n, 1), and the processes conditioned on them."""
        if self._fantasies is not None or self.members is not None or self._categorical is not None:
            raise UnsupportedError(
                "sample paths do not support fantasies, members or categories; use posterior(grid).rsample()"
            )
        return (self._kernels, *self._learned())

    def learned(self, rows: Observations, data: Observations) -> Self:
        """The processes conditioned on all rows, with the same hyperparameters, weighted by their evidence."""
        other = self._sibling()
        other.data, other._cache = data, None
        return other

    def selected(self, outputs: list[int]) -> Self:
        """The model of a subset of the outputs."""
        other, batch = self._sibling(), self.data.X.ndim - 2
        index = outputs if len(outputs) > 1 else outputs[0]
        for name, value in zip(Hyperparameters._fields, self.hyperparameters, strict=True):
            setattr(other, name, value[(slice(None),) * batch + (index,)])
        other.data, rows = self.data.of_outputs(outputs), self._fantasies
        other._fantasies = None if rows is None else rows.of_outputs(outputs)
        if self._outcome_transform is not None:
            other.outcome_transform = self._outcome_transform.subset_output(outputs)
        other._cache = None
        return other

    def set_train_data(self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True) -> None:
        """Replace the rows in place, in the form of :attr:`train_inputs` and :attr:`train_targets`, as GPyTorch does.

        Raises:
            RuntimeError: If a shape changes while strict, or the number of rows changes and their noise is known.
            BotorchError: If values are not finite, or do not match the model's columns, outputs, dtype and device.
        """
        X, Y, noise = self.data
        if inputs is not None:
            X = self._without_batch(inputs if isinstance(inputs, Tensor) else inputs[0])
            transform = self._input_transform
            X = X if transform is None or self.training else transform.untransform(X)
        if targets is not None:
            Y = targets if self.members is None else targets[..., 0, :]
            Y = Y.unsqueeze(-1) if self.num_outputs == 1 else Y.mT
            Y = Y if self._outcome_transform is None else self._outcome_transform.untransform(Y, X=X)[0]
        is_other = (X.shape, Y.shape) != (self.data.X.shape, self.data.Y.shape)
        if X.shape[:-1] != Y.shape[:-1] or (is_other and (strict or noise is not None)):
            raise RuntimeError(
                f"inputs {tuple(X.shape)} and targets {tuple(Y.shape)} cannot replace the rows; build a new model"
            )
        check_observations(X, Y, self.data.X, self.num_outputs, may_miss=False)
        self.data, self._cache = Observations(X.detach(), Y.detach(), noise), None

    def fit(self, start: Hyperparameters | None = None) -> Self:
        """Maximize the evidence of all rows, with priors, in place; alternates between processes and input transform.

        If all observations are equal, hyperparameters are set to the modes of their priors, with a warning.

        Args:
            start: A starting point in addition to the prior modes, such as hyperparameters fitted to fewer rows.

        Raises:
            NumericalError: If a covariance cannot be factorized.
        """
        if self._fantasies is not None:
            raise UnsupportedError("this model has no data; fit the model from which it was derived")
        self._enter_evaluation()
        starts = [] if start is None else [self.with_hyperparameters_(start).hyperparameters]
        Y = self.data.Y.mT.reshape(*self._aug_batch_shape, -1)
        varying = [index for index in product(*map(range, self._aug_batch_shape)) if not is_flat(Y[index])]
        self._fit(starts, varying)
        transform = self._input_transform
        if transform is not None and any(p.requires_grad for p in transform.parameters()):
            for _ in range(_ROUNDS):  # alternating: each set of hyperparameters has its own fit
                maximize_in_transform(transform, lambda: self._condition(self._own_rows()).log_density)
                self._fit([self.hyperparameters], varying)
        if self.data.noise is None and varying:
            noise = self.likelihood.noise if self.members is None else self.noise.mean(-1)
            places = tuple(map(list, zip(*varying, strict=True))) if self._aug_batch_shape else ...
            warn_of_noise(noise.reshape(self._aug_batch_shape)[places], self._own_rows().Y.squeeze(-1)[places])
        return self

    def with_hyperparameters_(self, hyperparameters: Hyperparameters) -> Self:
        """Set hyperparameters in place; a ValueError if a shape differs."""
        for name, value, own in zip(Hyperparameters._fields, hyperparameters, self.hyperparameters, strict=True):
            if value.shape != own.shape:
                raise ValueError(f"{name} must have shape {tuple(own.shape)}, got {tuple(value.shape)}")
        for name, value, own in zip(Hyperparameters._fields, hyperparameters, self.hyperparameters, strict=True):
            setattr(self, name, value.detach().to(own))
        self._cache = None
        return self

    def custom_fit(self, mll: MarginalLogLikelihood, **_: Any) -> MarginalLogLikelihood:
        """Called by BoTorch's ``fit_gpytorch_mll``: :meth:`fit`."""
        return mll.eval() if self.fit() else mll

    def _fit(self, starts: Sequence[Hyperparameters], varying: Sequence[tuple[int, ...]]) -> None:
        with torch.no_grad():
            rows = self._own_rows()
            modes = exact_kernels.initial_hyperparameters(self._kernels, rows.X.shape[-1])
            found = [value.expand_as(own).clone() for value, own in zip(modes, self.hyperparameters, strict=True)]
            for index in varying:
                own = [Hyperparameters(*(value[index] for value in start)) for start in starts]
                some = rows.map(itemgetter(index))
                fitted = exact_kernels.fit(self._kernels, some, [*own, *starts_of_fit(self._kernels, some, modes)])
                for every, value in zip(found, fitted, strict=True):
                    every[index] = value
        self.with_hyperparameters_(Hyperparameters(*found))

    @property
    def _kernels(self) -> Kernels:
        return Kernels(self._shapes, self._categorical)

    @property
    def _aug_batch_shape(self) -> torch.Size:  # BoTorch's name
        """Batch shape of data sets and, if there are several, outputs: each has its own hyperparameters."""
        return torch.Size([*self.data.X.shape[:-2], *([self.num_outputs] if self.num_outputs > 1 else [])])

    def _points(self, X: Tensor) -> Tensor:
        """Inputs in double precision, with an extra dimension if there are several outputs."""
        return X.double() if self.num_outputs == 1 else X.double().unsqueeze(-3)

    def _without_batch(self, X: Tensor) -> Tensor:
        """Inputs per data set, from inputs repeated over outputs and members."""
        return X if X.ndim <= self.data.X.ndim else self._without_batch(X.select(-3, 0))

    def _own_rows(self) -> Observations:
        """The rows of every data set and output, (*data_sets, n, D) and (*data_sets, n, 1), in double precision."""
        rows = self.rows().map(Tensor.double)
        if self.num_outputs == 1:
            return rows
        X = rows.X.unsqueeze(-3).expand(*self._aug_batch_shape, *rows.X.shape[-2:])
        return Observations(X, rows.Y.mT.unsqueeze(-1), None if rows.noise is None else rows.noise.mT.unsqueeze(-1))

    def _of_members(self, values: Tensor, tail: int) -> Tensor:
        """Select the processes' values (..., M), followed by ``tail`` dimensions, for each member."""
        assert self.members is not None
        several, lead = self.num_outputs > 1, values.ndim - tail - 1
        index = resampled(self.log_weights if several else self.log_weights.unsqueeze(-2), self.members)
        places = (index if several else index.squeeze(-2)).reshape(*index.shape[not several :], *[1] * tail)
        return values.gather(lead, places.expand(*values.shape[:lead], self.members, *values.shape[lead + 1 :]))

    def _condition(self, rows: Observations) -> Conditioned:
        return exact_kernels.condition(self._kernels, rows, self.hyperparameters)

    @torch.no_grad()
    def _learned(self) -> tuple[Observations, Conditioned]:
        if self._cache is None:
            rows = self._own_rows()
            self._cache = rows, self._condition(rows)
        return self._cache


def maximize_in_transform(transform: InputTransform, log_evidences: Callable[[], Tensor]) -> None:
    """Maximize a mixture's evidence plus log priors over an input transform's parameters, in place."""
    whole = GPyTorchModule()  # collects the bounds and priors of all its parts
    whole.transform = transform
    parameters, bounds = get_parameters_and_bounds(whole, requires_grad=True)

    def loss() -> Tensor:
        try:
            value = log_evidences().logsumexp(-1).sum()
        except NumericalError as error:
            raise NanError(str(error)) from error  # BoTorch's optimizer treats this as a bad point
        for _, module, prior, closure, _ in whole.named_priors():
            value = value + prior.log_prob(closure(module)).sum()
        return -value

    with module_rollback_ctx(whole) as before:  # restores the parameters if the optimizer fails
        scipy_minimize(
            ForwardBackwardClosure(loss, parameters), parameters, bounds, options={"maxiter": _INPUT_ITERATIONS}
        )
        before.clear()
    whole.zero_grad(set_to_none=True)


def _check_kernels(model: ExactEnsembleModel, state: Mapping[str, Any], prefix: str, *_: object) -> None:
    """Reject a state dict of other kernels before loading."""
    own = model.smoothness
    if not torch.equal(state.get(f"{prefix}smoothness", own).to(own), own):
        raise ValueError(f"the state was saved with kernels other than {model.kernels}; build the model with those")


BatchedMultiOutputGPyTorchModel.register(ExactEnsembleModel)  # for these BoTorch expects inputs (O, n, D)


@final
class _Scaled(ScaleKernel):  # type: ignore[misc]
    """A kernel with an output scale; its length scales can be read, as in ``SingleTaskGP``, but not set."""

    @property
    def lengthscale(self) -> Tensor:
        """Length scales of the base kernel."""
        scales: Tensor = self.base_kernel.lengthscale
        return scales


def _refuse(options: dict[str, Any]) -> None:
    """Reject all options; for those of ``SingleTaskGP``, name the alternative."""
    given = [name for name in ("covar_module", "mean_module", "likelihood") if options.pop(name, None) is not None]
    if options:
        raise TypeError(f"an ExactEnsembleModel takes no argument {next(iter(options))!r}")
    if given:
        raise UnsupportedError(
            f"an ExactEnsembleModel takes no {given[0]}: it has RBF and Matern kernels (kernels=) with a constant of "
            f"unit variance instead of a mean, and inferred noise or train_Yvar; otherwise use a SingleTaskGP"
        )
