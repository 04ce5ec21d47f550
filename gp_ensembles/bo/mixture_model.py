"""The base of every model of this library that BoTorch takes: one contract, whatever makes the predictions."""

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


class MixtureModel(Model, GP, ABC):  # type: ignore[misc]  # a GP, for GPyTorch's marginal likelihoods ask for one
    """A BoTorch model whose posterior is a weighted mixture of normal distributions, perhaps of one.

    A model says how its components predict, and how they learn, in transformed inputs and outcomes; all else is here.
    Rows are kept as they were given, and no ``state_dict`` has them (nor have those of BoTorch's models).

    Args:
        data: The rows as they were given.
        input_transform: Applied to inputs; it must have nothing to learn by gradients.
        outcome_transform: Applied to targets, and undone in predictions.
        unit_scale: Applied to transformed inputs; BoTorch does not see it.
    """

    data: Observations
    joint: Callable[[Tensor], MixturePosterior]  # jointly at points, before any fantasies: most models have it
    selected: Callable[[list[int]], Self]  # the model of some of its outputs: models of several have it
    move_others: Callable[[Callable[[Tensor], Tensor]], None] | None = None  # moves what is no part of a module
    is_normal = False  # whether a mixture of one component is given as the normal posterior that it is
    why_no_known_noise: str | None = None  # what is said where known noise is refused
    members: int | None = None  # how many normal posteriors of equal weight stand for the mixture
    _cache: Any = None  # what is computed from the rows and the parameters
    _in_double: tuple[str, ...] = ()  # buffers of double precision, whatever that of the rows
    _fantasies: Observations | None = None
    _is_fantasy = False  # whether it has fantasies that are no data
    _supports_cache_root = False  # draws are those of the mixture, not of one normal distribution

    def __init__(
        self,
        data: Observations,
        input_transform: InputTransform | None,
        outcome_transform: OutcomeTransform | None,
        unit_scale: Normalize | None = None,
    ) -> None:
        super().__init__()
        # Attributes that are absent where there is no transform, as BoTorch's own models have them.
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

        With the model's own noise added, or a variance (..., q or 1, O), it is the targets.
        """

    def after(self, rows: Observations | None, own_noise: Tensor, X: Tensor, noise: bool | Tensor) -> MixturePosterior:
        r"""Predictions of :attr:`joint` at q points X (\*t, q, D) after further rows, if any, weights included.

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
        """The model after further rows, (n, D) and (n, O), with all data as given; this one stays as it is."""

    @classmethod
    def construct_inputs(cls, training_data: SupervisedDataset, **options: Any) -> dict[str, Any]:
        """Arguments of the constructor from a data set, as Ax asks for them; options are left out that are ``None``."""
        if "train_X" not in signature(cls).parameters:
            raise UnsupportedError(f"a {cls.__name__} cannot be built from a data set; build it from a fitted object")
        return Model.construct_inputs(training_data) | {k: value for k, value in options.items() if value is not None}

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch of data sets or of fantasies, and of the members; empty for one data set."""
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
        """Inputs (n, D) in a tuple, after the input transform unless in training; with a batch as the targets have."""
        X = self.data.X
        if self._fantasies is not None:
            X = self._seen().X
            X = X if self._unit_scale is None else self._unit_scale.untransform(X)
        elif self._has_transformed_inputs:
            X = Observations(X, X).transformed(self._input_transform, None).X
        batch, lead = X.shape[:-2], [self.num_outputs] if self.num_outputs > 1 else []
        lead += [] if self.members is None else [self.members]  # what targets have before their rows
        return (X.reshape(*batch, *[1] * len(lead), *X.shape[-2:]).expand(*batch, *lead, *X.shape[-2:]),)

    @property
    def _has_transformed_inputs(self) -> bool:  # type: ignore[override]  # BoTorch's name
        return self._input_transform is not None and not self.training

    @property
    def _original_train_inputs(self) -> Tensor:  # type: ignore[override]  # BoTorch's name
        return self.data.X

    @property
    def train_targets(self) -> Tensor:
        """Targets after the outcome transform, (n,); (O, n) of several outputs, (K, n) of members, as in BoTorch."""
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
        r"""The function at q points jointly, differentiable in X.

        Args:
            X: Inputs, shape (\*t, q, D); \*t broadcasts with the model's batch shape.
            output_indices: Outputs wanted; all by default.
            observation_noise: Whether to add the noise, or the variance to add, (..., q or 1, O) in transformed
                outcomes.
            posterior_transform: Applied to every component, so it has to give normal posteriors.

        Returns:
            A ``MixturePosterior``; a ``NormalPosterior`` of one component; a ``GaussianMixturePosterior`` of members;
            a ``TransformedPosterior`` of one of them where the outcome transform is not linear.

        Raises:
            BotorchError: If X is of another shape or device, or not finite, an output does not exist, or the
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
            words = "it needs a linear outcome transform and, of several outputs, one kernel or members=K"
            raise UnsupportedError(f"instead of a posterior_transform give an objective of samples: {words}")
        return printable(posterior_transform(posterior, X))

    def _standing(self, posterior: MixturePosterior | GPyTorchPosterior) -> MixturePosterior | GPyTorchPosterior:
        """What stands for a mixture: its members, or its only component."""
        if not isinstance(posterior, MixturePosterior):
            return posterior
        if self.members is not None:
            return posterior.equal()
        return posterior.alone() if self.is_normal else posterior

    def __call__(self, X: Tensor, *arguments: Any, **options: Any) -> MultivariateNormal:
        """The prior in training; else the posterior's normal distribution at transformed inputs, a batch of outputs."""
        if self.training:
            return cast(MultivariateNormal, super().__call__(X, *arguments, **options))
        posterior = cast(GPyTorchPosterior, self._standing(self.predict(self._scaled(X), False)))
        if self.num_outputs == 1:
            return posterior.distribution
        return MultivariateNormal(posterior.mean.mT, output_covariances(posterior))

    def inputs_at(self, X: Tensor) -> Tensor:
        r"""Inputs (\*t, q, D) as the components see them, checked; a transform may make more columns or points."""
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
        r"""The model after further observations, weights included; this one stays as it is.

        With the batch shape of the data, which is empty for one data set, they are learned as data; with another, the
        result is a batch of fantasy models.

        Args:
            X: Inputs, shape (\*t, n, D).
            Y: Observations, shape (\*y, n, O). Rows that are NaN are left out where they would be learned as data.
            noise: Known variances in transformed outcomes, (..., n, O), of a model built with some, or of a batch.
            **options: As in BoTorch's models; ``propagate_grads`` is always true.

        Raises:
            BotorchError: If a shape, value, dtype or option is wrong, or the noise is known of some rows only.
        """
        self._enter_evaluation()
        is_lasting = X.shape[:-2] == Y.shape[:-2] == self.data.X.shape[:-2] and not self._is_fantasy
        check_observations(X, Y, self.data.X, self.num_outputs, may_miss=is_lasting)
        _refuse_options(options)
        if is_lasting:
            X, Y, noise = Observations(X, Y, noise).observed()
        if noise is None and self.data.noise is not None:
            raise InputDataError("the model was built with known noise; give that of the new observations as noise=")
        rows = self._rows(X, Y)._replace(noise=noise)
        self._check_transformed(rows)
        if not is_lasting:
            return self.fantasies(rows)
        if noise is not None and self.data.noise is None:  # it would be lost when the rows are learned again
            raise InputDataError("the model infers its noise; leave noise= out, or build it with that of all rows")
        outcomes = self._outcome_transform
        if noise is not None and outcomes is not None:
            noise = outcomes.untransform(rows.Y, noise)[1]
        return self.learned(rows, self.data.followed_by(Observations(X, Y, noise).map(Tensor.detach)))

    def fantasize(self, X: Tensor, sampler: MCSampler, observation_noise: Tensor | None = None, **options: Any) -> Self:
        r"""Condition on draws from the posterior at X (\*t, q, D): the fantasies come first in the batch shape.

        With q = 0 the batch is expanded and nothing learned. Arguments are as in BoTorch's models.
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
        r"""The model after rows that differ over a batch, (\*t, n, D) and (\*y, n, O); this one stays as it is."""
        if self.members is not None:
            raise UnsupportedError("members take no fantasies: their weights could not move; build with members=None")
        if self.why_no_known_noise is not None and rows.noise is not None:
            raise UnsupportedError(self.why_no_known_noise)
        other = self._sibling()
        other._fantasies = rows if self._fantasies is None else self._fantasies.followed_by(rows)
        other._is_fantasy = True
        return other

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, noise: Tensor | None = None) -> Self:
        r"""What ``ModelListGP.condition_on_observations`` calls: inputs (\*t, n, D), transformed targets (\*y, n)."""
        if targets.numel() == inputs.shape[:-1].numel():  # BoTorch's transforms add a dimension to (n,)
            targets = targets.reshape(inputs.shape[:-1])
            noise = None if noise is None else noise.reshape(inputs.shape[:-1])
        transform = self._outcome_transform
        Y = targets.unsqueeze(-1) if transform is None else transform.untransform(targets.unsqueeze(-1), X=inputs)[0]
        return self.condition_on_observations(inputs, Y, None if noise is None else noise.unsqueeze(-1))

    def subset_output(self, idcs: list[int]) -> Self:
        """The model of some of the outputs; a BotorchTensorDimensionError if one does not exist."""
        if not idcs or any(not -self.num_outputs <= output < self.num_outputs for output in idcs):
            raise BotorchTensorDimensionError(f"the model has {self.num_outputs} output(s), asked for {idcs}")
        return self if self.num_outputs == 1 else self.selected(idcs)

    def rows(self) -> Observations:
        """The data as the components see them."""
        return self._rows(*self.data)

    def _seen(self) -> Observations:
        """The data and the fantasies as the components see them, in every batch."""
        more = self._fantasies
        if more is None:
            return self.rows()
        return self.rows().followed_by(more).map(lambda part: part.expand(*self.batch_shape, *part.shape[-2:]))

    def _first_rows(self) -> Observations:
        """The data as the components see them, checked: transforms learn here, and nowhere else."""
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
                check_finite(what, values, "take another transform, or other rows")

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
        """Noise of a future observation where that of the rows is known, (..., 1, 1)."""
        noise = None if self.data.noise is None else self.rows().noise
        return None if noise is None else noise.mean(-2, keepdim=True)

    def _sibling(self) -> Self:
        """A copy with hyperparameters and transforms of its own; rows, which nobody changes, are shared."""
        return copy.deepcopy(self, {id(part): part for part in (self.data, self._fantasies) if part is not None})

    def load_state_dict(  # type: ignore[override]  # BoTorch's order
        self, state_dict: Mapping[str, Any], strict: bool = True, keep_transforms: bool = True, assign: bool = False
    ) -> Any:
        """Load hyperparameters and transforms, kept or not: the rows, as they were given, are learned with them."""
        return super().load_state_dict(state_dict, strict, assign)

    def _start_anew(self, *_: object) -> None:
        """Forget what was computed from rows and parameters that change in place."""
        self._cache = None
        for mode in (not self.training, self.training):  # when it changes, GPyTorch forgets what it has computed
            self.train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        like, after = self.data.X, fn(self.data.X[:0])
        if (after.dtype, after.device) == (like.dtype, like.device):  # BoTorch often calls it in vain
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
        """Nothing to do: the data are kept as they were given, and transformed when they are learned."""

    _revert_to_original_inputs = _set_transformed_inputs


def _refuse_options(options: dict[str, Any]) -> None:
    options.pop("propagate_grads", None)  # gradients always go through
    if options:
        raise UnsupportedError(f"unknown options {sorted(options)}; known noise variances are given as noise=")
