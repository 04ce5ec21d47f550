r"""Thompson sampling: functions drawn from the posterior, and EGP-TS, the optimization loop that maximizes them.

A draw is exact: an expert by its weight, then its weights :math:`\theta \sim N(\mu, \Sigma)`; it is
:math:`f(x) = \phi(x)^\top \theta`, a function that can be evaluated and differentiated anywhere.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, final

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.transforms.input import Normalize
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths, get_matheron_path_model
from botorch.utils.sampling import draw_sobol_samples, manual_seed, optimize_posterior_samples
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.bo.default_ensemble import SMOOTHNESSES, kernel_ensemble
from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.bo.model import EnsembleModel
from gp_ensembles.bo.views import GaussianView
from gp_ensembles.features.base import BoundFeatures
from gp_ensembles.features.batch import take_experts
from gp_ensembles.numerics.display import counted
from gp_ensembles.numerics.draws import categorical_draws, generator_device, normal_draws

# The draws from one expert: its feature map alone, X (..., N, D) to (..., 1, N, F); places of the draws among all,
# flattened, (K,); and weights in units of the targets, (K, F).
_Draws = tuple[BoundFeatures, Tensor, Tensor]


@final
class EnsemblePath(SamplePath):
    """Functions drawn from an ensemble's posterior at the next step."""

    def __init__(self, model: EnsembleModel, shape: torch.Size, draws: list[_Draws]) -> None:
        super().__init__()
        self.model: EnsembleModel = model
        self.shape = shape
        self.draws = draws

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Does nothing: every draw is of one expert."""

    def forward(self, X: Tensor, **_: Any) -> Tensor:
        r"""Values at X (\*t, n, D), shape (\*b, n)."""
        inputs = self.model.transform_inputs(X)
        lead, num = inputs.shape[:-2], len(self.shape)
        own = lead[max(0, len(lead) - num) :]
        if all(size == 1 for size in own):  # all draws at the same points: an expert's features serve all its draws
            points = inputs.reshape(*lead[: max(0, len(lead) - num)], *inputs.shape[-2:])
            parts = [(rows, (features(points).squeeze(-3) @ weights.mT).mT) for features, rows, weights in self.draws]
        else:
            batch = torch.broadcast_shapes(lead, self.shape)
            points = inputs.expand(*batch, *inputs.shape[-2:]).flatten(len(batch) - num, len(batch) - 1)
            parts = [
                (rows, (features(points[..., rows, :, :]).squeeze(-3) @ weights.unsqueeze(-1)).squeeze(-1))
                for features, rows, weights in self.draws
            ]
        order = torch.cat([index for index, _ in parts]).argsort()
        values = torch.cat([value for _, value in parts], dim=-2)[..., order, :]
        return self._untransform(values.reshape(*values.shape[:-2], *self.shape, values.shape[-1]), X)

    def _untransform(self, values: Tensor, X: Tensor) -> Tensor:
        transform = self.model._outcome_transform
        if transform is None:
            return values
        columns = values.unsqueeze(-1) if self.model.num_outputs == 1 else values.mT
        outcomes: Tensor = transform.untransform(columns, X=X)[0]
        return outcomes.squeeze(-1) if self.model.num_outputs == 1 else outcomes.mT


@torch.no_grad()
def draw_paths(
    model: MixtureModel,
    sample_shape: torch.Size = torch.Size(),  # noqa: B008 - as in BoTorch
    *,
    generator: torch.Generator | None = None,
) -> EnsemblePath:
    """Functions drawn from the posterior at the next step.

    Args:
        model: An ``EnsembleModel``.
        sample_shape: Shape of the sample.
        generator: Source of randomness; torch's global one if ``None``.

    Raises:
        UnsupportedError: If the model is a batch of fantasies, or no ``EnsembleModel``.

    Example:
        >>> import torch
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> model = EnsembleModel(X, X.sin(), generator=torch.Generator().manual_seed(0))
        >>> path = draw_paths(
        ...     model, torch.Size([3]), generator=torch.Generator().manual_seed(1)
        ... )
        >>> path(X).shape
        torch.Size([3, 6])
    """
    if not isinstance(model, EnsembleModel):
        _refuse_paths(model)
    if model.batch_shape:
        raise UnsupportedError("paths are drawn from a model of data, not from a batch of fantasies")
    predictive, num_outputs = model.predictive_state(), model.num_outputs
    selected = categorical_draws(predictive.log_weights.exp(), sample_shape.numel(), generator)
    draws, first = list[_Draws](), 0
    for expert, posterior in zip(model.ensemble.experts, predictive.experts, strict=True):
        for entry, (mean, covariance, scale) in enumerate(
            zip(posterior.mean, posterior.covariance, posterior.scale, strict=True)
        ):
            own = (selected == first + entry).nonzero().squeeze(-1)
            if own.numel():
                index = torch.tensor([entry], dtype=torch.int64, device="cpu")
                features = take_experts(expert.features, expert.batch_shape, index).bind()
                normals = normal_draws((own.numel(), *mean.shape), mean, generator)
                errors = (psd_safe_cholesky(covariance) @ normals.unsqueeze(-1)).squeeze(-1)
                weights = (mean + errors) * scale.unsqueeze(-1)  # (K, O, F)
                rows = (own.unsqueeze(-1) * num_outputs + torch.arange(num_outputs, device=own.device)).flatten()
                draws.append((features, rows, weights.flatten(0, 1)))
        first += len(posterior.noise)
    return EnsemblePath(model, sample_shape if num_outputs == 1 else torch.Size([*sample_shape, num_outputs]), draws)


class ThompsonSettings(NamedTuple):
    """Settings of :class:`ThompsonLoop`.

    Attributes:
        num_features: Features of each expert.
        smoothnesses: Kernels, one expert for each; see :func:`~gp_ensembles.bo.default_ensemble.kernel_ensemble`.
        forgetting: Empty for a static objective; forgetting factors for one that drifts, such as ``(0.99, 0.97, 0.9)``.
        num_initial: Points of a Sobol sequence before the first model; ``None`` for twice the dimensions plus two.
        refit_every: Observations after which hyperparameters are fitted again, but no fewer than a tenth of those seen;
            in between only weights are learned.
        raw_samples: Points at which each draw is evaluated before its best ones are improved by gradients.
        num_restarts: How many are improved.
    """

    num_features: int = 256
    smoothnesses: tuple[float, ...] = SMOOTHNESSES
    forgetting: tuple[float, ...] = ()
    num_initial: int | None = None
    refit_every: int = 5
    raw_samples: int = 1024
    num_restarts: int = 5


_SETTINGS = ThompsonSettings()


@final
class ThompsonLoop:
    r"""Maximize an objective by ensemble Thompson sampling (EGP-TS; Lu, Polyzos, Li, Giannakis 2023).

    Each point of a batch is the maximum of a function drawn from the posterior: an expert by its weight, then its
    weights from their normal distribution. Observations are learned in their order, at O(F²) each; hyperparameters are
    fitted again to all of them ever more rarely. The loop owns all state, so an interrupted run is resumed by another
    call of :meth:`run`, and a new loop with the ``X`` and ``Y`` of an earlier one continues it.

    Args:
        bounds: Lower and upper bounds of the inputs, shape (2, D).
        settings: Model, initial design, refits and the optimizer of draws.
        X: Observations made before, shape (n, D), if any.
        Y: Their values, shape (n, 1).
        generator: Source of all randomness.

    Raises:
        BotorchTensorDimensionError: If a shape is wrong.
        InputDataError: If a lower bound is not below its upper one, or a value is not finite.

    Example:
        >>> import torch
        >>> bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        >>> loop = ThompsonLoop(bounds, generator=torch.Generator().manual_seed(0))
        >>> X, Y = loop.run(lambda X: -(X - 0.3) ** 2, num_rounds=6)
        >>> len(Y), bool((X[Y.argmax()] - 0.3).abs() < 0.05)
        (10, True)
    """

    def __init__(
        self,
        bounds: Tensor,
        settings: ThompsonSettings = _SETTINGS,
        X: Tensor | None = None,
        Y: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        if bounds.ndim != 2 or bounds.shape[0] != 2:
            raise BotorchTensorDimensionError(f"bounds must have shape (2, D), got {tuple(bounds.shape)}")
        if not bounds.is_floating_point():
            raise InputDataError(f"bounds must be floating point numbers, got {bounds.dtype}; use bounds.double()")
        if (X is None) != (Y is None):
            raise InputDataError("give X and Y of earlier observations together")
        if not bool((bounds[0] < bounds[1]).all()):
            raise InputDataError(f"lower bounds must lie below upper ones, got {bounds.tolist()}")
        self.bounds = bounds
        self.settings = settings
        self.generator = generator
        self.X = bounds.new_empty(0, bounds.shape[1])
        self.Y = bounds.new_empty(0, 1)
        self._model: EnsembleModel | None = None
        self._num_fitted = 0
        self._design_seed = self._seed()  # one sequence, however many calls draw from it
        if X is not None and Y is not None:
            self.observe(X, Y)

    @property
    def num_initial(self) -> int:
        """Points of the Sobol sequence that come first."""
        given = self.settings.num_initial
        return 2 * self.bounds.shape[1] + 2 if given is None else given

    def __repr__(self) -> str:
        best = f", the largest value {float(self.Y.max()):.4g}" if len(self.Y) else ""
        return f"ThompsonLoop of {counted((self.bounds.shape[1], 'input'), (len(self.Y), 'observation'))}{best}"

    def model(self) -> EnsembleModel:
        """The ensemble after all observations; fitted again if a refit is due.

        Raises:
            InputDataError: If there are fewer than two observations.
        """
        settings, num_seen = self.settings, self.Y.shape[0]
        due = max(settings.refit_every, self._num_fitted // 10)  # ever rarer, so that fits do not dominate
        if self._model is None or num_seen - self._num_fitted >= due:
            self._model, self._num_fitted = self._fitted(), num_seen
        elif self._model.data.Y.shape[0] < num_seen:
            seen = self._model.data.Y.shape[0]
            self._model = self._model.condition_on_observations(self.X[seen:], self.Y[seen:])
        return self._model

    def suggest(self, batch_size: int = 1) -> Tensor:
        """Points to observe next, shape (q, D); nothing changes until they are observed.

        Raises:
            ValueError: If the batch size is not positive.
        """
        if batch_size < 1:
            raise ValueError(f"a batch needs at least one point, got {batch_size}")
        num_seen = self.Y.shape[0]
        if num_seen < self.num_initial:
            points = draw_sobol_samples(self.bounds, num_seen + batch_size, 1, seed=self._design_seed).squeeze(-2)
            return points[num_seen:]
        model = self.model()
        with manual_seed(self._seed()):
            paths = get_matheron_path_model(model, torch.Size([batch_size]))
            return maximize_draws(paths, self.bounds, self.settings.raw_samples, self.settings.num_restarts)

    def observe(self, X: Tensor, Y: Tensor) -> None:
        """Take in observations in their order: X (q, D), Y (q, 1) or (q,).

        Raises:
            BotorchTensorDimensionError: If a shape is wrong.
            InputDataError: If a value is not finite.
        """
        Y = Y.unsqueeze(-1) if Y.ndim == 1 else Y
        if X.ndim != 2 or X.shape[1] != self.bounds.shape[1] or Y.shape != (X.shape[0], 1):
            raise BotorchTensorDimensionError(
                f"observations must be X (q, {self.bounds.shape[1]}) and Y (q, 1), got {tuple(X.shape)} and "
                f"{tuple(Y.shape)}"
            )
        bad = ~torch.isfinite(torch.cat([X, Y], dim=1)).all(1)
        if bool(bad.any()):
            raise InputDataError(f"row {int(bad.int().argmax())} of the observations is not finite; leave it out")
        self.X, self.Y = torch.cat([self.X, X.to(self.X)]), torch.cat([self.Y, Y.to(self.Y)])

    def run(
        self, objective: Callable[[Tensor], Tensor], num_rounds: int, batch_size: int = 1, *, progress: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Suggest, evaluate and observe, round after round; an interrupted run loses no observation.

        Args:
            objective: Maps X (q, D) to values (q, 1) to be maximized.
            num_rounds: Rounds, after what is missing of the initial design.
            batch_size: Points of a round.
            progress: Show a progress bar with the best value.

        Returns:
            All inputs (n, D) and values (n, 1) so far.
        """
        missing = self.num_initial - self.Y.shape[0]
        if missing > 0:
            X = self.suggest(missing)
            self.observe(X, objective(X))
        with tqdm(range(num_rounds), desc="EGP-TS", disable=not progress) as rounds:
            for _ in rounds:
                X = self.suggest(batch_size)
                self.observe(X, objective(X))
                rounds.set_postfix(best=f"{float(self.Y.max()):.4g}")
        return self.X, self.Y

    def _fitted(self) -> EnsembleModel:
        settings = self.settings
        like = self.X[:1]
        ensemble = kernel_ensemble(
            like,
            num_features=settings.num_features,
            smoothnesses=settings.smoothnesses,
            forgetting=settings.forgetting,
            generator=self.generator,
        )
        unit = Normalize(self.bounds.shape[1], bounds=self.bounds)
        model = EnsembleModel(self.X, self.Y, ensemble=ensemble, input_transform=unit)
        is_flat = bool((self.Y[:1] == self.Y).all())  # a plateau has no information about length scales
        return model if is_flat else model.fit()

    def _seed(self) -> int:
        return int(torch.randint(2**31 - 1, (), generator=self.generator, device=generator_device(self.generator)))


def maximize_draws(paths: Callable[[Tensor], Tensor], bounds: Tensor, num_raw: int, num_restarts: int) -> Tensor:
    """The maxima (q, D) of q drawn functions within bounds (2, D): the best Sobol points, improved by L-BFGS-B."""
    near = GenericDeterministicModel(lambda X: paths(X.to(bounds)).to(X))
    best, _ = optimize_posterior_samples(near, bounds.cpu(), num_raw, num_restarts)
    return best.detach().to(bounds)


@DrawMatheronPaths.register(EnsembleModel)  # type: ignore[untyped-decorator]
def _draw_matheron_paths(model: EnsembleModel, *, sample_shape: torch.Size, **_: Any) -> EnsemblePath:
    """What BoTorch's pathwise functions call; they seed torch's global generator themselves."""
    return draw_paths(model, sample_shape)


def _refuse_paths(model: object, **_: Any) -> NoReturn:
    """What BoTorch's pathwise functions call for the other models."""
    raise UnsupportedError(
        f"draws of {type(model).__name__} are no functions in closed form; give an EnsembleModel, or take the best of "
        f"model.posterior(grid).rsample(...) on a grid of points"
    )


for _kind in (MixtureModel, GaussianView):
    DrawMatheronPaths.register(_kind)(_refuse_paths)
