"""Base class of this library's BoTorch models: one contract for all kinds of predictions."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import signature
from typing import Any, Self, cast

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.model import Model
from botorch.models.transforms.input import InputTransform, Normalize
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils.assorted import fantasize as fantasize_flag
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.sampling.base import MCSampler
from botorch.utils.datasets import SupervisedDataset
from gpytorch.distributions import MultivariateNormal
from gpytorch.models import GP
from torch import Tensor

from gp_ensembles.bo.data import Observations, check_finite, check_inputs, check_observations, joined
from gp_ensembles.bo.posterior import MixturePosterior, output_covariances, printable
from gp_ensembles.numerics.display import counted


class MixtureModel(Model, GP, ABC):  # type: ignore[misc]  # GPyTorch's marginal likelihoods require a GP
    """A BoTorch model whose posterior is a weighted mixture of one or more normal distributions.

    Subclasses define how components predict and learn, in transformed inputs and outcomes; everything else is here.
    Rows are stored raw and are not part of the ``state_dict`` (as in BoTorch's models).

    Args:
        data: The raw rows.
        input_transform: Applied to inputs; it must have no trainable parameters.
        outcome_transform: Applied to targets, and undone in predictions.
        unit_scale: Applied to transformed inputs; BoTorch does not see it.
    """

    data: Observations
    joint: Callable[[Tensor], MixturePosterior]  # joint posterior before any fantasies; most models have it
    selected: Callable[[list[int]], Self]  # the model of a subset of outputs; only for several outputs
    move_others: Callable[[Callable[[Tensor], Tensor]], None] | None = None  # moves tensors outside of modules
    is_normal = False  # whether a mixture of one component is returned as a normal posterior
    why_no_known_noise: str | None = None  # error message where known noise is rejected
    members: int | None = None  # number of equally weighted normal posteriors that represent the mixture
    _cache: Any = None  # results computed from the rows and the parameters
    _in_double: tuple[str, ...] = ()  # buffers in double precision, whatever the dtype of the rows
    _fantasies: Observations | None = None
    _is_fantasy = False  # whether it has fantasies in addition to data
    _supports_cache_root = False  # draws come from the mixture, not from one normal distribution

    def __init__(
        self,
        data: Observations,
        input_transform: InputTransform | None,
        outcome_transform: OutcomeTransform | None,
        unit_scale: Normalize | None = None,
    ) -> None:
        super().__init__()
        # As in BoTorch's models, these attributes are absent if there is no transform.
        for name, transform in (("input_transform", input_transform), ("outcome_transform", outcome_transform)):
            if transform is not None:
                setattr(self, name, transform)
        self._unit_scale = unit_scale
        self.data = data.map(lambda values: values.detach().clone())
        self.register_load_state_dict_post_hook(MixtureModel._start_anew)  # type: ignore[no-untyped-call]

    @property
    @abstractmethod
    def num_experts(self) -> int:
        """Number M of components at one point."""

    @abstractmethod
    def predict(self, X: Tensor, noise: bool | Tensor) -> MixturePosterior | GPyTorchPosterior:
        r"""The function at q transformed points (\*t, q, D) jointly, in transformed outcomes.

        With noise (True, or a variance (..., q or 1, O)), the targets instead of the function.
        """

    def after(self, rows: Observations | None, own_noise: Tensor, X: Tensor, noise: bool | Tensor) -> MixturePosterior:
        r"""Predictions of :attr:`joint` at q points X (\*t, q, D) after additional rows, if any, weights included.

        The components' noise is (\*b, M, O or 1). It costs O(q³) for q rows.
        """
        if rows is None:
            mixture = self.joint(X)
        else:
            spread = own_noise.unsqueeze(-1) if rows.noise is None else rows.noise.mT.unsqueeze(-3)
            mixture = self.joint(joined(rows.X, X)).conditioned(rows.Y, spread)
        if noise is False:
            return mixture
        return mixture.with_noise(noise.mT.unsqueeze(-3) if isinstance(noise, Tensor) else own_noise.unsqueeze(-1))

    @abstractmethod
    def learned(self, rows: Observations, data: Observations) -> Self:
        """The model after additional rows, (n, D) and (n, O), with all raw data; this one is unchanged."""

    @classmethod
    def construct_inputs(cls, training_data: SupervisedDataset, **options: Any) -> dict[str, Any]:
        """Constructor arguments from a data set, in the form Ax expects; options that are ``None`` are left out."""
        if "train_X" not in signature(cls).parameters:
            raise UnsupportedError(f"a {cls.__name__} cannot be built from a data set; build it from a fitted object")
        return Model.construct_inputs(training_data) | {k: value for k, value in options.items() if value is not None}

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of data sets or fantasies, and of members; empty for one data set."""
        shape, rows = self.data.X.shape[:-2], self._fantasies
        if rows is not None:
            shape = torch.broadcast_shapes(shape, rows.X.shape[:-2], rows.Y.shape[:-2])
        return shape if self.members is None else torch.Size([*shape, self.members])

    def __repr__(self) -> str:
        return self._sizes()

    def _sizes(self) -> str:
        rows, inputs = self.data.X.shape[-2:]
        more = f", batch {tuple(self.data.X.shape[:-2])}" if self.data.X.ndim > 2 else ""
        more += "" if self.members is None else f", {self.members} members"
        counts = (rows, "row"), (inputs, "input"), (self.num_outputs, "output"), (self.num_experts, "expert")
        return f"{type(self).__name__} of {counted(*counts)}{more}"

    @property
    def num_outputs(self) -> int:
        """Number of outputs O."""
        return self.data.Y.shape[-1]

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Inputs (n, D) in a tuple, transformed unless in training; with the batch shape of the targets."""
        X = self.data.X
        if self._fantasies is not None:
            X = self._seen().X
            X = X if self._unit_scale is None else self._unit_scale.untransform(X)
        elif self._has_transformed_inputs:
            X = Observations(X, X).transformed(self._input_transform, None).X
        batch, lead = X.shape[:-2], [self.num_outputs] if self.num_outputs > 1 else []
        lead += [] if self.members is None else [self.members]  # dimensions of the targets before their rows
        return (X.reshape(*batch, *[1] * len(lead), *X.shape[-2:]).expand(*batch, *lead, *X.shape[-2:]),)

    @property
    def _has_transformed_inputs(self) -> bool:  # type: ignore[override]  # BoTorch's name
        return self._input_transform is not None and not self.training

    @property
    def _original_train_inputs(self) -> Tensor:  # type: ignore[override]  # BoTorch's name
        return self.data.X

    @property
    def train_targets(self) -> Tensor:
        """Targets after the outcome transform, (n,); (O, n) for several outputs, (K, n) for members, as in BoTorch."""
        Y = self._seen().Y.mT  # (*b, O, n)
        Y = Y.squeeze(-2) if self.num_outputs == 1 else Y
        return Y if self.members is None else Y.unsqueeze(-2).expand(*Y.shape[:-1], self.members, -1)

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        r"""Joint posterior of the function at q points, differentiable in X.

        Args:
            X: Inputs, shape (\*t, q, D); \*t broadcasts with the model's batch shape.
            output_indices: Outputs wanted; all by default.
            observation_noise: Whether to add the noise, or the variance to add, (..., q or 1, O) in transformed
                outcomes.
            posterior_transform: Applied to every component, so it must return normal posteriors.

        Returns:
            A ``MixturePosterior``; a ``NormalPosterior`` for one component; a ``GaussianMixturePosterior`` for members;
            a ``TransformedPosterior`` of one of these if the outcome transform is not linear.

        Raises:
            BotorchError: If X has another shape or device or is not finite, an output does not exist, or the
                posterior_transform cannot be applied.
        """
        self._enter_evaluation()
        if output_indices is not None:
            return self.subset_output(output_indices).posterior(X, None, observation_noise, posterior_transform)
        inputs = self.inputs_at(X)
        known = self._mean_noise() if observation_noise is True else None
        posterior: Posterior = self._standing(self.predict(inputs, observation_noise if known is None else known))
        outcomes = self._outcome_transform
        if outcomes is not None and isinstance(posterior, MixturePosterior):
            posterior = posterior.map_components(lambda normal: outcomes.untransform_posterior(normal, X=X))
        elif outcomes is not None:
            posterior = outcomes.untransform_posterior(posterior, X=X)
        if posterior_transform is None:
            return printable(posterior)
        if isinstance(posterior, MixturePosterior) and self.num_outputs == 1:
            return posterior.map_components(lambda normal: posterior_transform(normal, X))
        if not isinstance(posterior, GPyTorchPosterior):
            words = "it needs a linear outcome transform and, for several outputs, one kernel or members=K"
            raise UnsupportedError(f"use an objective on samples instead of a posterior_transform: {words}")
        return printable(posterior_transform(posterior, X))

    def _standing(self, posterior: MixturePosterior | GPyTorchPosterior) -> MixturePosterior | GPyTorchPosterior:
        """The representation of a mixture: its members, or its only component."""
        if not isinstance(posterior, MixturePosterior):
            return posterior
        if self.members is not None:
            return posterior.equal()
        return posterior.alone() if self.is_normal else posterior

    def __call__(self, X: Tensor, *arguments: Any, **options: Any) -> MultivariateNormal:
        """The prior in training, else the posterior's moments at transformed inputs, batched over outputs."""
        if self.training:
            return cast(MultivariateNormal, super().__call__(X, *arguments, **options))
        posterior = cast(GPyTorchPosterior, self._standing(self.predict(self._scaled(X), False)))
        if self.num_outputs == 1:
            return posterior.distribution
        return MultivariateNormal(posterior.mean.mT, output_covariances(posterior))

    def inputs_at(self, X: Tensor) -> Tensor:
        r"""Checked inputs (\*t, q, D) as the components see them; a transform may add columns or points."""
        X = X.to(self.data.X.dtype)
        check_inputs(X, self.data.X)
        if X.shape[-1] == self.data.X.shape[-1]:
            return self._scaled(self.transform_inputs(X))
        with suppress(BotorchTensorDimensionError):
            inputs = self.transform_inputs(X)
            if inputs.shape[-1] == self.rows().X.shape[-1]:
                return self._scaled(inputs)
        raise BotorchTensorDimensionError(f"X must have shape (..., q, {self.data.X.shape[-1]}), got {tuple(X.shape)}")

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **options: Any) -> Self:
        r"""The model after additional observations, weights included; this one is unchanged.

        With the batch shape of the data (empty for one data set), they are learned as data; with another, the
        result is a batch of fantasy models.

        Args:
            X: Inputs, shape (\*t, n, D).
            Y: Observations, shape (\*y, n, O). Rows that are NaN are left out if they are learned as data.
            noise: Known variances in transformed outcomes, (..., n, O), if the model has known noise, or for a batch.
            **options: As in BoTorch's models; ``propagate_grads`` is always true.

        Raises:
            BotorchError: If a shape, value, dtype or option is invalid, or noise is known for some rows only.
        """
        self._enter_evaluation()
        is_lasting = X.shape[:-2] == Y.shape[:-2] == self.data.X.shape[:-2] and not self._is_fantasy
        check_observations(X, Y, self.data.X, self.num_outputs, may_miss=is_lasting)
        _refuse_options(options)
        if is_lasting:
            X, Y, noise = Observations(X, Y, noise).observed()
        if noise is None and self.data.noise is not None:
            raise InputDataError("the model was built with known noise; pass that of the new observations as noise=")
        rows = self._rows(X, Y)._replace(noise=noise)
        self._check_transformed(rows)
        if not is_lasting:
            return self.fantasies(rows)
        if noise is not None and self.data.noise is None:  # it would be lost when the rows are relearned
            raise InputDataError("the model infers its noise; omit noise=, or build it with known noise for all rows")
        outcomes = self._outcome_transform
        if noise is not None and outcomes is not None:
            noise = outcomes.untransform(rows.Y, noise)[1]
        return self.learned(rows, self.data.followed_by(Observations(X, Y, noise).map(Tensor.detach)))

    def fantasize(self, X: Tensor, sampler: MCSampler, observation_noise: Tensor | None = None, **options: Any) -> Self:
        r"""Condition on draws from the posterior at X (\*t, q, D); fantasies are the leading batch dimensions.

        With q = 0 only the batch is expanded. Arguments are as in BoTorch's models.
        """
        self._enter_evaluation()
        check_inputs(X, self.data.X)
        _refuse_options(options)
        noise = self._mean_noise() if observation_noise is None else observation_noise
        if X.shape[-2] == 0:
            Y = X.new_empty(*sampler.sample_shape, *X.shape[:-1], self.num_outputs)
        else:
            with fantasize_flag():
                Y = sampler(self.posterior(X, observation_noise=True if noise is None else noise))
        each = None if noise is None else noise.expand(*noise.shape[:-2], X.shape[-2], noise.shape[-1])
        return self.fantasies(self._rows(X, Y)._replace(noise=each))

    def fantasies(self, rows: Observations) -> Self:
        r"""The model after a batch of rows, (\*t, n, D) and (\*y, n, O); this one is unchanged."""
        if self.members is not None:
            raise UnsupportedError("fantasies cannot update the weights of members; build the model with members=None")
        if self.why_no_known_noise is not None and rows.noise is not None:
            raise UnsupportedError(self.why_no_known_noise)
        other = self._sibling()
        other._fantasies = rows if self._fantasies is None else self._fantasies.followed_by(rows)
        other._is_fantasy = True
        return other

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, noise: Tensor | None = None) -> Self:
        r"""Called by ``ModelListGP.condition_on_observations``: inputs (\*t, n, D), transformed targets (\*y, n)."""
        if targets.numel() == inputs.shape[:-1].numel():  # BoTorch's transforms add a dimension to (n,)
            targets = targets.reshape(inputs.shape[:-1])
            noise = None if noise is None else noise.reshape(inputs.shape[:-1])
        transform = self._outcome_transform
        Y = targets.unsqueeze(-1) if transform is None else transform.untransform(targets.unsqueeze(-1), X=inputs)[0]
        return self.condition_on_observations(inputs, Y, None if noise is None else noise.unsqueeze(-1))

    def subset_output(self, idcs: list[int]) -> Self:
        """The model of a subset of the outputs; a BotorchTensorDimensionError if one does not exist."""
        if not idcs or any(not -self.num_outputs <= output < self.num_outputs for output in idcs):
            raise BotorchTensorDimensionError(f"the model has {self.num_outputs} output(s), requested {idcs}")
        return self if self.num_outputs == 1 else self.selected(idcs)

    def rows(self) -> Observations:
        """The data as the components see them."""
        return self._rows(*self.data)

    def _seen(self) -> Observations:
        """The data and the fantasies as the components see them, with the full batch shape."""
        more = self._fantasies
        if more is None:
            return self.rows()
        return self.rows().followed_by(more).map(lambda part: part.expand(*self.batch_shape, *part.shape[-2:]))

    def _first_rows(self) -> Observations:
        """The checked data as the components see them: transforms are fitted here and nowhere else."""
        for transform in (self._input_transform, self._outcome_transform, self._unit_scale):
            if transform is not None:
                transform.to(self.data.X).train()
        rows = self.rows()
        self._check_transformed(rows)
        self.eval()
        return rows

    def _check_transformed(self, rows: Observations) -> None:
        for name, transform, values in (("X", self._input_transform, rows.X), ("Y", self._outcome_transform, rows.Y)):
            if transform is not None:
                what = f"{type(transform).__name__}() of {name}"
                check_finite(what, values, "use another transform, or other rows")

    @property
    def _input_transform(self) -> InputTransform | None:
        return cast(InputTransform | None, self._modules.get("input_transform"))

    @property
    def _outcome_transform(self) -> OutcomeTransform | None:
        return cast(OutcomeTransform | None, self._modules.get("outcome_transform"))

    def _rows(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> Observations:
        rows = Observations(X, Y, noise).transformed(self._input_transform, self._outcome_transform)
        return rows._replace(X=self._scaled(rows.X))

    def _scaled(self, X: Tensor) -> Tensor:
        return X if self._unit_scale is None else self._unit_scale(X)

    def _mean_noise(self) -> Tensor | None:
        """Noise of a future observation if that of the rows is known, (..., 1, 1)."""
        noise = None if self.data.noise is None else self.rows().noise
        return None if noise is None else noise.mean(-2, keepdim=True)

    def _sibling(self) -> Self:
        """A copy with its own hyperparameters and transforms; rows are immutable and shared."""
        return copy.deepcopy(self, {id(part): part for part in (self.data, self._fantasies) if part is not None})

    def load_state_dict(  # type: ignore[override]  # BoTorch's order
        self, state_dict: Mapping[str, Any], strict: bool = True, keep_transforms: bool = True, assign: bool = False
    ) -> Any:
        """Load hyperparameters and transforms, and relearn the raw rows; ``keep_transforms`` has no effect."""
        return super().load_state_dict(state_dict, strict, assign)

    def _start_anew(self, *_: object) -> None:
        """Clear caches computed from rows and parameters that change in place."""
        self._cache = None
        for mode in (not self.training, self.training):  # GPyTorch clears its caches when the mode changes
            self.train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        like, after = self.data.X, fn(self.data.X[:0])
        if (after.dtype, after.device) == (like.dtype, like.device):  # BoTorch often calls this without need
            return self
        self._start_anew()
        self.data = self.data.map(fn)
        if self._fantasies is not None:
            self._fantasies = self._fantasies.map(fn)
        if self.move_others is not None:
            self.move_others(fn)
        kept = {name: self._buffers.pop(name) for name in self._in_double}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._buffers.update({name: None if part is None else part.to(after.device) for name, part in kept.items()})
        return self

    def _enter_evaluation(self) -> None:
        if self.training:  # transforms in training mode would learn from the inputs of predictions
            self.eval()

    def _set_transformed_inputs(self) -> None:
        """Nothing to do: data are stored raw and transformed when they are learned."""

    _revert_to_original_inputs = _set_transformed_inputs


def _refuse_options(options: dict[str, Any]) -> None:
    options.pop("propagate_grads", None)  # gradients always propagate
    if options:
        raise UnsupportedError(f"unknown options {sorted(options)}; pass known noise variances as noise=")
