"""Drift of filters from the exact posterior after so many updates, by precision and form.

``python -m attacks drift --rows 1000000`` learns rows of a linear model with static weights, a block after the other,
and compares mean and covariance with those of all rows at once, from sums in extended precision.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attacks.telling import Table, Telling
from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters import gaussian_state
from gp_ensembles.filters.states import GaussianState, SquareRootState, square_root_state
from gp_ensembles.meta_learners import BayesianModelAveraging

FORMS: dict[str, Callable[[Tensor, int], GaussianState | SquareRootState]] = {
    "covariance": gaussian_state,
    "square root": square_root_state,
}
_INPUTS, _BLOCK = 7, 20_000
_TRUTH = np.linspace(-1, 1, _INPUTS)
_NOISE = 0.3


class Drift(NamedTuple):
    """Distance from the exact posterior.

    Attributes:
        precision: The dtype.
        form: Covariance or square root.
        rows: Rows learned.
        mean: Largest error of the posterior mean, in posterior standard deviations.
        variance: Largest relative error of the posterior variances.
    """

    precision: str
    form: str
    rows: int
    mean: float
    variance: float


def measure(precision: str, form: str, num_rows: int, seed: int = 0) -> Drift:
    """Learn rows and compare.

    Args:
        precision: ``float64`` or ``float32``.
        form: ``covariance`` or ``square root``.
        num_rows: Rows to learn.
        seed: Of the rows.
    """
    dtype = torch.float64 if precision == "float64" else torch.float32
    features = LinearFeatures(_INPUTS, torch.ones((), dtype=dtype))
    expert = GaussianExpert(features, initial_state=FORMS[form])
    online = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
    draw = np.random.default_rng(seed)
    size = features.num_features
    precision_sum = np.zeros((size, size), dtype=np.longdouble)
    target_sum = np.zeros(size, dtype=np.longdouble)
    bound = expert.bind()
    for start in range(0, num_rows, _BLOCK):
        rows = min(_BLOCK, num_rows - start)
        X = torch.from_numpy(draw.normal(size=(rows, _INPUTS))).to(dtype)
        y = torch.from_numpy(X.double().numpy() @ _TRUTH + _NOISE * draw.normal(size=rows)).to(dtype)
        online.observe(X, y)
        with torch.no_grad():
            Phi = bound.features(X).double().numpy().astype(np.longdouble)
        precision_sum += Phi.T @ Phi
        target_sum += Phi.T @ y.double().numpy().astype(np.longdouble)
    noise, prior = float(bound.noise.detach().double()), float(bound.prior_variance.detach().double())
    exact = np.linalg.inv((precision_sum / noise + np.eye(size) / prior).astype(np.float64))
    exact_mean = exact @ (target_sum / noise).astype(np.float64)
    mean, variance = _posterior(online)
    deviations = np.sqrt(np.diag(exact))
    return Drift(
        precision,
        form,
        num_rows,
        float(np.abs((mean - exact_mean) / deviations).max()),
        float(np.abs(variance / np.diag(exact) - 1).max()),
    )


def _posterior(online: OnlineEnsemble) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    state = online.state.experts[0]
    assert isinstance(state, GaussianState | SquareRootState)
    covariance: Tensor = state.covariance
    return state.mean.double().numpy(), covariance.double().diagonal().numpy()


def main(argv: Sequence[str]) -> int:
    """Run the attack; returns 0."""
    telling = Telling("drift", __doc__)
    telling.options.add_argument("--rows", type=int, default=1_000_000)
    values = telling.read(argv)
    torch.set_num_threads(1)
    kinds = itertools.product(("float64", "float32"), FORMS)
    rows = [measure(precision, form, values.rows) for precision, form in kinds]
    cells = [[one.precision, one.form, f"{one.rows:,}", f"{one.mean:.1e}", f"{one.variance:.1e}"] for one in rows]
    columns = ["precision", "form", "updates", "mean, in posterior deviations", "variance, relative"]
    telling.tell(Table("Largest error of a static linear expert", columns, cells))
    return 0
