"""Online ensembles with skpro's interface: a probabilistic regressor that keeps learning through ``update``."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from gp_ensembles.distributions import Mixture
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import light, oebe
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.estimators.inputs import Array, as_array, as_tensor
from gp_ensembles.estimators.scikit_learn import OnlineRegressor
from gp_ensembles.streaming.config import OnBadRow
from gp_ensembles.streaming.predictions import StreamDistribution

try:
    import pandas as pd
    from skpro.distributions.base import BaseDistribution
    from skpro.regression.base import BaseProbaRegressor
except ImportError:
    raise ImportError("gp_ensembles.estimators.skpro needs skpro; install gp_ensembles[skpro]") from None


@dataclass(frozen=True, eq=False)
class Predicted:
    """Wrapper of a predictive distribution of K rows: skpro would treat a bare tuple as a list of parameters."""

    distribution: StreamDistribution


class PredictiveDistribution(BaseDistribution):
    """Predictions of an ensemble for N rows, as a skpro distribution with one column."""

    _tags = {  # noqa: RUF012 (skpro reads them so)
        "capabilities:approx": ["energy", "pdfnorm"],
        "capabilities:exact": ["mean", "var", "pdf", "log_pdf", "cdf", "ppf"],
        "distr:measuretype": "continuous",
        "distr:paramtype": "general",
        "broadcast_init": "off",
    }

    def __init__(self, predicted: Predicted, places: Any = None, index: Any = None, columns: Any = None) -> None:
        self.predicted = predicted
        self.places = places
        self._rows = np.arange(predicted.distribution.mean.shape[0]) if places is None else np.asarray(places)
        super().__init__(index=index, columns=columns)

    def _mean(self) -> Array:
        return self._shaped(as_array(self.predicted.distribution.mean))

    def _var(self) -> Array:
        return self._shaped(as_array(self.predicted.distribution.variance))

    def _pdf(self, x: Array) -> Array:
        return np.exp(self._log_pdf(x))

    def _log_pdf(self, x: Array) -> Array:
        return self._shaped(as_array(self.predicted.distribution.log_prob(self._full(x, 0.0))))

    def _cdf(self, x: Array) -> Array:
        return self._shaped(as_array(self.predicted.distribution.cdf(self._full(x, 0.0))))

    def _ppf(self, p: Array) -> Array:
        return self._shaped(as_array(self.predicted.distribution.quantile(self._full(p, 0.5))))

    def _iloc(self, rowidx: Any = None, colidx: Any = None) -> "PredictiveDistribution":
        rows, columns = np.arange(len(self._rows)), np.arange(len(self.columns))
        rows = rows if rowidx is None else np.atleast_1d(rows[rowidx])
        columns = self.columns.take(columns if colidx is None else np.atleast_1d(columns[colidx]))
        return PredictiveDistribution(self.predicted, self._rows[rows], self.index.take(rows), columns)

    def _iat(self, rowidx: Any = None, colidx: Any = None) -> "PredictiveDistribution":
        return PredictiveDistribution(self.predicted, self._rows[[rowidx]])

    def _full(self, values: Array, filler: float) -> Any:
        """Values of these rows at their positions among all, and a filler at the others."""
        full = np.full(self.predicted.distribution.mean.shape[0], filler)
        full[self._rows] = np.asarray(values, dtype=np.float64).reshape(-1)
        return as_tensor(full).to(self.predicted.distribution.mean)

    def _shaped(self, values: Array) -> Array:
        chosen: Array = values[self._rows].reshape(self.shape)
        return chosen

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Instances for skpro's checks."""
        mean = as_tensor(np.array([[0.0, 1.0, 2.0], [0.5, 0.5, 3.0]]))
        mixture = Mixture(as_tensor(np.log([0.3, 0.7])), mean, mean.square() + 1.0)
        return [
            {"predicted": Predicted(mixture), "index": pd.Index([1, 2, 5]), "columns": pd.Index(["a"])},
            {"predicted": Predicted(mixture), "places": [1]},
        ]


class SkproRegressor(BaseProbaRegressor):
    """Online ensemble of Bayesian basis expansions with skpro's interface.

    ``fit`` takes rows in time order, ``update`` learns more at constant cost per row, and
    ``predict_proba`` returns the full predictive distribution, noise included. Inputs may be missing.

    Args:
        spec: Specification of the ensemble, as in :class:`~gp_ensembles.estimators.scikit_learn.OnlineRegressor`.
        warmup: Rows for scales and hyperparameters.
        random_state: Seed.
        on_bad_row: Handling of unusable numbers, as in ``OnlineRegressor``.

    Example:
        >>> X = pd.DataFrame({"wind": np.random.default_rng(0).normal(size=80)})
        >>> y = 3 * X.rename(columns={"wind": "power"}) + 10
        >>> model = SkproRegressor(replace(oebe, bases=(LinearBasis(),)), random_state=0)
        >>> _ = model.fit(X[:60], y[:60]).update(X[60:75], y[60:75])
        >>> bool((abs(model.predict_proba(X[75:]).mean() - y[75:]) < 0.5).all(axis=None))
        True
    """

    regressor_: OnlineRegressor

    _tags = {  # noqa: RUF012 (skpro reads them so)
        "authors": ["the gp_ensembles developers"],
        "python_dependencies": None,
        "capability:multioutput": False,
        "capability:missing": True,
        "capability:update": True,
        "X_inner_mtype": "pd_DataFrame_Table",
        "y_inner_mtype": "pd_DataFrame_Table",
    }

    def __init__(
        self,
        spec: EnsembleSpec | None = None,
        warmup: int = 1000,
        random_state: int | None = None,
        on_bad_row: OnBadRow = "missing",
    ) -> None:
        self.spec = spec
        self.warmup = warmup
        self.random_state = random_state
        self.on_bad_row = on_bad_row
        super().__init__()

    def _fit(self, X: pd.DataFrame, y: pd.DataFrame, C: pd.DataFrame | None = None) -> Self:
        self._columns_of_y = y.columns
        regressor = OnlineRegressor(self.spec, self.warmup, self.random_state, self.on_bad_row)
        self.regressor_ = regressor.fit(_named(X), _target(y))
        return self

    def _update(self, X: pd.DataFrame, y: pd.DataFrame, C: pd.DataFrame | None = None) -> Self:
        self.regressor_.partial_fit(_named(X), _target(y))
        return self

    def _predict(self, X: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(self.regressor_.predict(_named(X)), index=X.index, columns=self._columns_of_y)

    def _predict_proba(self, X: pd.DataFrame) -> PredictiveDistribution:
        distribution = self.regressor_.predict_distribution(_named(X))
        return PredictiveDistribution(Predicted(distribution), index=X.index, columns=self._columns_of_y)

    def _predict_interval(self, X: pd.DataFrame, coverage: Any) -> pd.DataFrame:
        ends = {}
        for share in coverage:
            lower, upper = self.regressor_.predict_interval(_named(X), share)
            for name in self._columns_of_y:
                ends[name, share, "lower"], ends[name, share, "upper"] = lower, upper
        return pd.DataFrame(ends, index=X.index)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Instances for skpro's checks: fits of these take seconds."""
        linear = replace(oebe, bases=(LinearBasis(),))
        return [{"spec": linear, "warmup": 40, "random_state": 0}, {"spec": light, "warmup": 30, "random_state": 1}]


def _named(X: pd.DataFrame) -> pd.DataFrame:
    """Inputs with names accepted by scikit-learn: all strings."""
    return X.set_axis([str(name) for name in X.columns], axis=1)


def _target(y: pd.DataFrame) -> Array:
    values: Array = y.to_numpy(dtype=np.float64)[:, 0]
    return values
