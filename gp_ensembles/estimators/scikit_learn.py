"""The scikit-learn door: an online ensemble as a regressor."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.ensembles.presets import auto
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.estimators.warm_up import WarmUpEnsemble

Array = np.ndarray[Any, Any]


class OnlineRegressor(RegressorMixin, BaseEstimator):
    """Online ensemble of Bayesian basis expansions with scikit-learn's interface.

    Rows are taken in the order of time. The first ``warmup`` rows set scales and hyperparameters; the rest, and every
    later ``partial_fit``, is learned at constant cost per row. Everything is in the units of the data. Columns that are
    constant in the warm-up rows are left out.

    Args:
        spec: What the ensemble is made of; :data:`~gp_ensembles.ensembles.presets.auto` if ``None``.
        warmup: Rows for scales and hyperparameters. With ``partial_fit`` alone, rows are kept until that many have
            come, and meanwhile predictions are the running mean and variance of the targets.
        random_state: Seed, random state or ``None``, as in scikit-learn.

    Example:
        >>> from dataclasses import replace
        >>> import numpy as np
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(80, 2))
        >>> y = 3 * X[:, 0] + 10 + 0.1 * rng.normal(size=80)
        >>> model = OnlineRegressor(replace(oebe, bases=(LinearBasis(),)))
        >>> mean, std = model.fit(X[:60], y[:60]).partial_fit(X[60:], y[60:]).predict(X[:3], return_std=True)
        >>> bool(np.abs(mean - y[:3]).max() < 0.5), bool((std > 0.05).all())
        (True, True)
    """

    def __init__(
        self,
        spec: EnsembleSpec | None = None,
        warmup: int = 1000,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.spec = spec
        self.warmup = warmup
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Forget everything, fit to the first rows, and learn all.

        Args:
            X: Inputs in the order of time, shape (N, D).
            y: Targets, shape (N,).

        Raises:
            ValueError: If the data are malformed, or fewer than ten rows.
        """
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64, ensure_min_samples=2)
        self._model = self._new_model(min(self.warmup, len(y)))
        self._model.observe(*_tensors(X, y))
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn further rows; a target may be NaN where it was not observed.

        Args:
            X: Inputs in the order of time, shape (N, D).
            y: Targets, shape (N,).
        """
        first = not self.__sklearn_is_fitted__()
        X = validate_data(self, X, dtype=np.float64, reset=first)
        y = np.asarray(y, dtype=np.float64)
        if y.shape != X.shape[:1]:
            raise ValueError(f"y must have shape {X.shape[:1]}, got {y.shape}")
        if first:
            self._model = self._new_model(self.warmup)
        self._model.observe(*_tensors(X, y))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Mean of the predictive mixture, and its standard deviation (noise included) if asked for."""
        mixture = self._mixture(X)
        mean: Array = mixture.mean.numpy()
        return (mean, mixture.stddev.numpy()) if return_std else mean

    def predict_quantiles(self, X: Any, quantiles: Any) -> Array:
        """Quantiles of the predictive mixture.

        Args:
            X: Inputs, shape (N, D).
            quantiles: Probabilities, shape (K,).

        Returns:
            Quantiles, shape (K, N).
        """
        mixture = self._mixture(X)
        levels = torch.as_tensor(np.asarray(quantiles, dtype=np.float64)).reshape(-1, 1)
        result: Array = mixture.quantile(levels).numpy()
        return result

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int | None = None) -> Array:
        """Independent draws from the predictive mixture of each row, shape (N, n_samples)."""
        generator = torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
        result: Array = self._mixture(X).sample(n_samples, generator=generator).T.numpy()
        return result

    @property
    def expert_weights_(self) -> dict[str, float]:
        """Weights in force for the next target, by expert; empty while the warm-up lasts."""
        check_is_fitted(self)
        online = self._model.online
        if online is None:
            return {}
        return dict(zip(online.names, online.log_weights.exp().tolist(), strict=True))

    def __sklearn_is_fitted__(self) -> bool:
        return "_model" in self.__dict__

    def _mixture(self, X: Any) -> Mixture:
        check_is_fitted(self)
        return self._model.predict(_copy(validate_data(self, X, dtype=np.float64, reset=False)))

    def _new_model(self, num_warmup: int) -> WarmUpEnsemble:
        spec = auto if self.spec is None else self.spec
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return WarmUpEnsemble(spec, num_warmup, seed)


def _tensors(X: Array, y: Array) -> tuple[Tensor, Tensor]:
    return _copy(X), _copy(y)


def _copy(values: Array) -> Tensor:
    """A tensor of its own: the user's memory may be read-only, or change later."""
    return torch.from_numpy(np.array(values, dtype=np.float64))
