"""Ways to learn the parameters of fusion models: closed forms, quadrature, NumPyro's frozen posteriors, bad input."""

import math
import sys
import warnings
from itertools import cycle

import pytest
import torch

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.papers.fusion import laplace
from gp_ensembles.papers.fusion.chees import HMCSettings
from gp_ensembles.papers.fusion.function_priors import FourierPrior
from gp_ensembles.papers.fusion.hmc import HMC, combine_chains, equal_chains, stacked_chains
from gp_ensembles.papers.fusion.inference import MAP, find_modes
from gp_ensembles.papers.fusion.laplace import LaplaceApproximation, NormalApproximation, newton, usable_precision
from gp_ensembles.papers.fusion.leapfrog import leapfrog
from gp_ensembles.papers.fusion.models import BHS, PBHS, HetGP, MoGPE, PoGPE
from studies.fusion.nuts import NUTS
from tests.papers.fusion import cases
from tests.papers.fusion.cases import F64, LinearGaussian, line, mcse_mean, normal, seeded, without_noise
from tests.papers.fusion.cases import fourier_prior as prior


def targets(X):
    return (3 * X).sin().squeeze(-1) + 0.3 * normal(len(X), seed=9)


def experts(num_experts, X):
    mean, variance = normal(2, num_experts, len(X))
    return without_noise(mean, variance.exp())


X = line(20)
Y = targets(X)
MODELS = {
    "bhs": lambda: BHS(X, Y, experts(3, X), prior()),
    "pbhs": lambda: PBHS(X, Y, experts(3, X), prior()),
    "mogpe": lambda: MoGPE(X, Y, 2, prior(), prior(seed=1), prior(seed=2)),
    "pogpe": lambda: PoGPE(X, Y, 2, prior(), prior(seed=1), prior(seed=2)),
    "het": lambda: HetGP(X, Y, prior(), prior(seed=1)),
    "hyper": lambda: HetGP(X, Y, prior(prior_stddev=0.5), prior(seed=1)),
    "gaussian": lambda: LinearGaussian(X, Y, prior(), 0.1),
}


def quiet(inference, model):
    with cases.quiet():
        return inference.infer(model, generator=seeded())


INFERENCES = {
    "map": MAP(num_restarts=3),
    "laplace": LaplaceApproximation(num_restarts=3, num_draws=20),
    "hmc": HMC(4, HMCSettings(num_draws=5, num_warmup=10)),
}


@pytest.mark.parametrize(("name", "kind"), list(zip(MODELS, cycle(INFERENCES))))
def test_contract(kind, name):
    """Finite weighted draws whose weights sum to one, repeated by the same seed, whatever the model."""
    model = MODELS[name]()
    found, again = (quiet(INFERENCES[kind], model) for _ in range(2))
    assert found.theta.shape == (len(found.log_weights), model.num_parameters)
    assert found.theta.isfinite().all()
    assert not found.theta.requires_grad
    assert found.log_weights.logsumexp(0).abs() < 1e-12
    assert kind != "map" or len(found.log_weights.unique()) == 1
    assert torch.equal(found.theta, again.theta)
    assert torch.equal(found.log_weights, again.log_weights)
    assert found.theta.dtype == found.log_weights.dtype == F64
    assert min(found.report.num_gradients, found.report.seconds) > 0
    assert found.report.method in found.report.summary()


def test_nothing_to_learn():
    """The stacking of a single expert has no parameter: one draw, and the evidence is the likelihood."""
    for inference in INFERENCES.values():
        predictions = experts(1, X)
        model = BHS(X, X.squeeze(-1), predictions, prior())
        found = inference.infer(model)
        assert found.theta.shape == (1, 0)
        assert found.report.log_evidence == pytest.approx(float(predictions.log_prob(model.y).sum()), rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_modes_have_no_slope(name):
    model = MODELS[name]()
    found = find_modes(model, 2, 2000, generator=seeded())
    assert found.converged.all()
    best = found.point[found.value.argmin()]
    mode = newton(model.log_joint, best, model.prior_stddev)
    slope = torch.autograd.functional.jacobian(model.log_joint, mode.theta)
    assert float(slope.abs().amax()) < 1e-3
    assert 0 <= mode.log_joint - model.log_joint(best) < 1e-3


def test_hessian():
    for name in ("pbhs", "mogpe", "hyper"):
        model = MODELS[name]()
        theta = model.draw_prior(1, generator=seeded())[0]
        expected = torch.autograd.functional.hessian(model.log_joint, theta)
        torch.testing.assert_close(laplace.hessian(model.log_joint, theta), expected, rtol=1e-8, atol=1e-8)


def test_a_normal_posterior():
    """Laplace's approximation is exact; chains come near."""
    model = MODELS["gaussian"]()
    mean, covariance = model.posterior()
    found = LaplaceApproximation(num_restarts=2, num_draws=20_000).infer(model, generator=seeded())
    assert found.report.log_evidence == pytest.approx(float(model.evidence()), abs=1e-7)
    error = (found.theta.mean(0) - mean) / (covariance.diagonal() / 20_000).sqrt()
    assert error.abs().amax() < 4.5
    largest = float(covariance.diagonal().amax())
    torch.testing.assert_close(found.theta.mT.cov(), covariance, rtol=0, atol=0.05 * largest)
    inference = HMC(8, HMCSettings(num_draws=300, num_warmup=200), chain_weighting=equal_chains)
    found = quiet(inference, model)
    assert found.report.diagnostics.rhat < 1.05
    torch.testing.assert_close(found.theta.mean(0), mean, rtol=0, atol=0.15 * largest**0.5)
    torch.testing.assert_close(found.theta.mT.cov(), covariance, rtol=0, atol=0.2 * largest)


@pytest.mark.parametrize("num_rows", [5, 20])
def test_laplace_evidence_against_quadrature(num_rows):
    """Two parameters: the evidence by a grid; Laplace comes nearer with more rows."""
    X = line(num_rows)
    model = PBHS(X, X.squeeze(-1), experts(1, X), prior(num_frequencies=1))
    grid = torch.linspace(-6, 6, 121, dtype=torch.float64)
    theta = torch.cartesian_prod(grid, grid)
    exact = model.log_joint(theta).logsumexp(0) + 2 * (grid[1] - grid[0]).log()
    found = LaplaceApproximation(num_restarts=4).infer(model, generator=seeded())
    assert found.report.log_evidence == pytest.approx(float(exact), abs=1.0 / num_rows)


@pytest.fixture
def nuts(archive):
    return archive("fusion_nuts")


def frozen(name, nuts):
    X, y = nuts["x"].unsqueeze(-1), nuts["y"]
    mean, scale, weights = (
        FourierPrior(nuts[f"frequencies_{kind}"].unsqueeze(-1), float(nuts[f"lengthscale_{kind}"]))
        for kind in ("mean", "log_scale", "weights")
    )
    if name == "pogpe":
        return PoGPE(X, y, 2, mean, scale, weights)
    return BHS(X, y, without_noise(nuts["expert_mean"], nuts["expert_variance"]), weights)


def agree(draws, name, nuts):
    """Chains (C, S, ...) of a quantity against its frozen mean and standard deviation."""
    flat = draws.flatten(0, 1)
    error = (mcse_mean(draws).square() + nuts[f"{name}_error"].square()).sqrt()
    score = (flat.mean(0) - nuts[f"{name}_mean"]) / error
    assert score.abs().max() < 4.0, score
    torch.testing.assert_close(flat.std(0), nuts[f"{name}_sd"], rtol=0.12, atol=0)


def test_bhs_agrees_with_nuts(nuts):
    model = frozen("bhs", nuts)
    draws = quiet(HMC(16, HMCSettings(num_draws=250, num_warmup=150)), model).chains
    agree(model.log_likelihood(draws.theta).sum(-1), "bhs_log_likelihood", nuts)
    agree(model.log_weights(draws.theta, nuts["x_new"].unsqueeze(-1)).exp()[:, :, 0], "bhs_weight", nuts)


@pytest.mark.slow
def test_pogpe_agrees_with_nuts(nuts):
    model = frozen("pogpe", nuts)
    draws = quiet(HMC(16, HMCSettings(num_draws=150, num_warmup=120)), model).chains
    parts = model.components(draws.theta, nuts["x_new"].unsqueeze(-1))
    agree(model.log_likelihood(draws.theta).sum(-1), "pogpe_log_likelihood", nuts)
    agree(parts.mean.squeeze(-2), "pogpe_predictive_mean", nuts)
    agree(parts.variance.log().squeeze(-2), "pogpe_log_variance", nuts)


def test_numpyro(nuts):
    """NumPyro's sampler on our model agrees with NumPyro's own run of the model written in jax."""
    pytest.importorskip("numpyro")
    model = frozen("bhs", nuts)
    found = quiet(NUTS(num_draws=300, num_warmup=200), model)
    assert found.chains.theta.shape == (4, 300, model.num_parameters)
    torch.testing.assert_close(model.log_joint(found.chains.theta), found.chains.log_density)
    agree(model.log_likelihood(found.chains.theta).sum(-1), "bhs_log_likelihood", nuts)


def test_numpyro_without_numpyro(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"gp_ensembles\[numpyro\]"):
        NUTS().infer(MODELS["het"]())


def test_stacked_chains_avoid_a_poor_mode():
    loo = normal(4, 200) * 0.1 - 1.0
    loo[2] -= 3.0
    weights = stacked_chains(loo)
    assert weights[2] < 0.01
    assert weights.sum() == pytest.approx(1.0)
    # At the optimum every chain's gradient is the number of rows and pseudo-rows.
    gradient = (loo - (weights.log()[:, None] + loo).logsumexp(0)).exp().sum(-1) + 1.0 / weights
    torch.testing.assert_close(gradient, torch.full_like(gradient, 204.0), rtol=1e-3, atol=0)


@pytest.mark.filterwarnings("ignore:the chains differ|.*leave-one-out|.*energies")
def test_interrupted(monkeypatch):
    """Ctrl-C keeps the draws made so far, and ``more`` goes on as if nothing had happened."""
    model = MODELS["het"]()
    inference = HMC(4, HMCSettings(num_draws=40, num_warmup=20))
    calls = iter(range(1000))

    def interrupted(*args):
        if next(calls) == 35:
            raise KeyboardInterrupt
        return leapfrog(*args)

    monkeypatch.setattr("gp_ensembles.papers.fusion.chees.leapfrog", interrupted)
    with pytest.warns(UserWarning, match="interrupted after 35"):
        found = inference.infer(model, generator=seeded())
    made = found.chains.theta.shape[1]
    assert made == 15
    monkeypatch.undo()
    with cases.quiet():
        joined = inference.sample_more(model, found, 40 - made)
    assert torch.equal(joined.chains.theta, quiet(inference, model).chains.theta)


def test_interrupted_before_the_first_draw():
    model = MODELS["het"]()
    inference = HMC(4, HMCSettings(num_draws=0, num_warmup=10))
    with pytest.warns(UserWarning, match="no draw yet"):
        found = inference.infer(model, generator=seeded())
    assert found.theta.shape == (4, model.num_parameters)
    assert found.theta.isfinite().all()


def test_only_chains_go_on():
    model = MODELS["het"]()
    with pytest.raises(ValueError, match="Laplace has no chains"):
        HMC().sample_more(model, quiet(LaplaceApproximation(num_draws=5), model), 5)


def test_chains_that_cannot_move():
    """Every proposal rejected: an error that names what to change, not draws that repeat one point."""
    model = MODELS["het"]()
    draws = quiet(HMC(4, HMCSettings(num_draws=5, num_warmup=10)), model).chains
    stuck = draws._replace(theta=draws.theta[:, :1].expand_as(draws.theta))
    with pytest.raises(NumericalError, match=r"none of the 4 chains moved.*warm up longer"):
        combine_chains(model, stuck, equal_chains, "HMC", 0.0, [])


def test_some_divergent_chains_are_said():
    """A density with an edge: the draws are usable, and the warning says how many transitions were lost."""
    model = MODELS["gaussian"]()
    inside = model.log_likelihood

    def walled(theta):
        return torch.where(theta.amax(-1, keepdim=True) > 1.5, -torch.inf, inside(theta))

    model.log_likelihood = walled
    with warnings.catch_warnings(record=True, action="always") as caught:
        found = HMC(4, HMCSettings(num_draws=40, num_warmup=30, max_steps=32)).infer(model, generator=seeded())
    assert any("diverged" in str(one.message) for one in caught)
    assert any("diverged" in caution for caution in found.report.cautions)
    assert int(found.report.diagnostics.divergences.sum()) > 0
    assert model.predictive(found.theta, X, draw_log_weights=found.log_weights).mean.isfinite().all()


def test_likelihood_that_is_nowhere_finite():
    model = MODELS["gaussian"]()
    model.noise = math.nan
    for inference in INFERENCES.values():
        with pytest.raises(NumericalError, match="not finite even near the prior mean"):
            inference.infer(model)
    broken = BHS(X, X.squeeze(-1), experts(1, X), prior())
    sound = broken.log_likelihood
    broken.log_likelihood = lambda theta: sound(theta) * torch.nan
    with pytest.raises(NumericalError, match="check the targets"):
        MAP().infer(broken)


def test_starts_far_out_are_drawn_in():
    """Amplitudes so large that draws of the prior overflow: the search starts nearer to the prior mean."""
    model = HetGP(X, Y, prior(), FourierPrior(torch.ones_like(X[:2]), amplitude=1e4))
    assert not model.log_joint(model.draw_prior(8, generator=seeded())).isfinite().all()
    found = find_modes(model, 8, 5, generator=seeded())
    assert found.value.isfinite().all()


def test_flat_directions_are_said():
    """Stopped long before the top, at a saddle: the prior's variance and a warning."""
    one = torch.ones(3, dtype=torch.float64)
    mode = NormalApproximation(one, one[0], torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64), torch.diag(one), 0.0)
    precision, cautions = usable_precision(mode)
    assert precision.tolist() == [1.0, 0.5, 2.0]
    assert "in 1 of 3 directions" in cautions[0]


def test_bad_settings():
    for kind, choices in [
        (MAP, {"num_restarts": 0}),
        (LaplaceApproximation, {"num_draws": 0}),
        (HMC, {"num_chains": 0}),
        (NUTS, {"num_draws": 0}),
        (HMC, {"jitter": -1.0}),
    ]:
        with pytest.raises(ValueError, match=r"must be|cannot be"):
            kind(**choices)


def test_a_spike_without_mass_is_not_passed_over():
    """Log amplitude and length scale sampled: draws about the best joint mode lie where the density is next to none."""
    X, frequencies = line(60), normal(10, 1, seed=8)
    y = (4.0 * X[:, 0]).sin() + 0.1 * normal(60, seed=7)
    for stddev in (None, 1.0):
        model = HetGP(X, y, *(FourierPrior(frequencies, 0.5, prior_stddev=stddev),) * 2)
        with warnings.catch_warnings(record=True, action="always") as caught:
            found = LaplaceApproximation().infer(model, generator=seeded())
        about = [str(one.message) for one in caught if "far from normal" in str(one.message)]
        assert bool(about) == (stddev is not None), (stddev, about)
        assert list(found.report.cautions) == [str(one.message) for one in caught]
        if stddev is not None:
            assert "fix the hyperparameters, or sample with HMC" in about[0]
