"""EGP-TS: Bayesian optimization by Thompson samples of an ensemble."""

from collections.abc import Callable
from typing import NamedTuple, final

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.models.transforms.input import Normalize
from botorch.sampling.pathwise.posterior_samplers import get_matheron_path_model
from botorch.utils.sampling import draw_sobol_samples, manual_seed, optimize_posterior_samples
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.bo.model import EnsembleModel
from gp_ensembles.bo.recipes import SMOOTHNESSES, kernel_ensemble

Objective = Callable[[Tensor], Tensor]


class ThompsonSettings(NamedTuple):
    """How the loop goes about it.

    Attributes:
        num_features: Features of each expert.
        smoothnesses: Kernels, one expert for each; see :func:`~gp_ensembles.bo.recipes.kernel_ensemble`.
        forgetting: Empty for an objective that stands still; for one that drifts, such as ``(0.99, 0.97, 0.9)``.
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
    fitted again to all of them ever more rarely. All state is here, so a run that was interrupted goes on with another
    call of :meth:`run`, and a loop of the same ``X`` and ``Y`` takes up where an earlier one ended.

    Args:
        bounds: Lower and upper bounds of the inputs, shape (2, D).
        settings: How the loop goes about it.
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

    def model(self) -> EnsembleModel:
        """The ensemble after all observations; fitted again if it is time to.

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
            best, _ = optimize_posterior_samples(
                paths, self.bounds, self.settings.raw_samples, self.settings.num_restarts
            )
        return best.detach()

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
        self, objective: Objective, num_rounds: int, batch_size: int = 1, *, progress: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Suggest, evaluate and observe, round after round; may be interrupted between any two.

        Args:
            objective: Maps X (q, D) to values (q, 1) to be maximized.
            num_rounds: Rounds after the initial points that are still missing.
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
        is_flat = bool((self.Y[:1] == self.Y).all())  # a plateau tells nothing about length scales
        return model if is_flat else model.fit()

    def _seed(self) -> int:
        return int(torch.randint(2**31 - 1, (), generator=self.generator, device="cpu"))
