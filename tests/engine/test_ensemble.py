"""The pure ensemble: golden ensembles and clear errors; the plain loop is in ``test_plans``."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gp_ensembles.engine import Ensemble
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import FeatureMap, LinearFeatures, RadialBasisFeatures
from gp_ensembles.filters import RandomWalk
from gp_ensembles.meta_learners import BayesianModelAveraging, MarkovSwitching
from gp_ensembles.meta_learners.switching import group_transition
from gp_ensembles.numerics.cholesky import NumericalError
from tests.refusals import refused


def stream(num_rows=40, seed=0):
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(num_rows, 2, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X[:, 0]) + 0.1 * torch.randn(num_rows, generator=g, dtype=torch.float64)
    return X, y


def bumps(batch=3, seed=3):
    g = torch.Generator().manual_seed(seed)
    centers = torch.randn(7, 2, generator=g, dtype=torch.float64)
    return RadialBasisFeatures(centers, torch.linspace(0.5, 2.0, batch, dtype=torch.float64).reshape(-1, 1))


def build(rule=None):
    shared = bumps()
    experts = [
        GaussianExpert(shared),
        GaussianExpert(shared, transition=RandomWalk(1e-2)),
        GaussianExpert(LinearFeatures(2, torch.tensor(1.0, dtype=torch.float64))),
    ]
    return Ensemble(experts, rule or BayesianModelAveraging())


class Table(FeatureMap):
    """Features looked up by row number, to feed frozen designs."""

    def __init__(self, Phi: Tensor, prior: Tensor) -> None:
        super().__init__(1, Phi.shape[-1], torch.Size())
        self.Phi, self.value = Phi, prior

    @property
    def prior_variance(self) -> Tensor:
        return self.value

    def bind(self):
        return lambda X: self.Phi[X[:, 0].long()]


def golden_expert(folder, name):
    base, regime = name.rsplit("/", 1) if "/" in name else name.rsplit("_", 1)
    numbers = np.load(folder / f"expert_{base}.npz")
    features = Table(torch.as_tensor(numbers["phi"]), torch.as_tensor(numbers["var_theta"]))
    walk = float(numbers[f"{regime}_var_rw"])
    expert = GaussianExpert(features, transition=RandomWalk(walk) if walk else None)
    expert.likelihood.noise = torch.as_tensor(numbers["var_eps"])  # a float would be rounded to float32
    return expert


def check_golden_ensemble(folder, name, rule):
    numbers = np.load(folder / f"{name}.npz")
    y = torch.as_tensor(np.load(next(folder.glob("data_*.npz")))["y"])
    names = [str(n) for n in numbers["expert_names"]]
    ensemble = Ensemble([golden_expert(folder, n) for n in names], rule(numbers), names)
    rows = torch.arange(len(y), dtype=torch.float64).unsqueeze(-1)
    state = ensemble.init()
    parts = []
    for X, targets in zip(rows.split(37), y.split(37), strict=True):
        state, predictions = ensemble.update(state, X, targets)
        parts.append(predictions)
    mean, variance, log_prob, log_weights = (
        torch.cat([part[i] for part in parts], dim=-1).detach().numpy() for i in range(4)
    )
    np.testing.assert_allclose(mean, numbers["mean"], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(variance, numbers["var"], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(log_prob, numbers["log_score_mixture"], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(log_weights.T, numbers["log_w_prior"], rtol=1e-8, atol=1e-8)
    experts = [torch.cat([part.experts[i] for part in parts], dim=-1).detach().numpy().T for i in range(3)]
    for got, key in zip(experts, ("expert_mean", "expert_var", "expert_loglik"), strict=True):
        np.testing.assert_allclose(got, numbers[key], rtol=1e-8, atol=1e-9)


CASES = {
    "ensemble_doebe6": lambda numbers: BayesianModelAveraging(),
    "ensemble_edoebe2x3": lambda numbers: MarkovSwitching(group_transition("abcabc", 0.01)),
}


@pytest.mark.parametrize("name", CASES)
def test_golden_synthetic(golden, name):
    check_golden_ensemble(golden, name, CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_golden_elevators(shared, name):
    check_golden_ensemble(shared / "golden" / "doebe", name, CASES[name])


def test_bad_input():
    X, y = stream()
    ensemble = build()
    state = ensemble.init()
    for bad_X, bad_y, kind, words in [
        (X, y[:-1], ValueError, "y must have shape"),
        (X[:0], y[:0], ValueError, "at least one row"),
        (X[:, :1], y, ValueError, "shape"),
        (X.float(), y.float(), TypeError, "float32"),
        (X, y.float(), TypeError, "float32"),
        (X[0], y, ValueError, "shape"),
        (X[0, 0], y, ValueError, r"use X.reshape\(1, 1\)"),
        (X.index_fill(0, torch.tensor([3]), torch.nan), y, ValueError, "row 3"),
        (X, y.index_fill(0, torch.tensor([4]), torch.inf), ValueError, "inf in row 4"),
    ]:
        with pytest.raises(kind, match=words):
            ensemble.update(state, bad_X, bad_y)
    refused(ValueError, "at least one expert", lambda: Ensemble([], BayesianModelAveraging()))
    refused(ValueError, "distinct", lambda: Ensemble(build().experts, BayesianModelAveraging(), names=["a"] * 7))
    wider = GaussianExpert(LinearFeatures(5, torch.tensor(1.0, dtype=torch.float64)))
    refused(ValueError, "numbers of inputs", lambda: Ensemble([*build().experts, wider], BayesianModelAveraging()))
    single = GaussianExpert(LinearFeatures(2, torch.tensor(1.0)))
    refused(ValueError, "dtype", lambda: Ensemble([*build().experts, single], BayesianModelAveraging()))
    with pytest.raises(ValueError):
        build(MarkovSwitching(torch.eye(3, dtype=torch.float64)))
    with torch.no_grad():
        state.experts[0].moments[0] -= 100
    refused(NumericalError, "expert 0", lambda: ensemble.update(state, X, y))
