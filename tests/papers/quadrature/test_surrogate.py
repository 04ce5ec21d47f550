"""The surrogate, its fit and its integrals: golden values, exact quadrature, dense sums, degenerate evaluations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize_scalar

from gp_ensembles.papers.quadrature.prior import inferred
from gp_ensembles.papers.quadrature.quadrature import (
    draw_nodes,
    estimate_evidence,
    evidence_of,
    integral_covariance,
    integrals,
)
from gp_ensembles.papers.quadrature.surrogate import (
    Distances,
    Evaluations,
    KernelDistance,
    Surrogate,
    SurrogateParameters,
    fit_parameters,
    log_correlations,
)
from tests.papers.quadrature.cases import (
    SMOOTH_ENERGY,
    draws_of_every_size,
    prior_of,
    seeded,
    surrogate_for,
    tensor,
    uniform,
)


def test_golden_moments(given_values, golden_surrogate):
    for noise, tag in [(0.0, "noise0"), (1e-3, "noise1e3")]:
        surrogate = golden_surrogate(noise)
        torch.testing.assert_close(surrogate.alpha, given_values["alpha"], rtol=1e-13, atol=0)
        torch.testing.assert_close(surrogate.roots, given_values["z"], rtol=1e-13, atol=0)
        torch.testing.assert_close(surrogate.log_scale, given_values["loglik_max"], rtol=0, atol=0)
        test = given_values["theta_test"]
        moments = *surrogate.latent(test), *surrogate.likelihood(test)
        for found, name in zip(moments, ("g_mean", "g_cov", "L_mean", "L_cov"), strict=True):
            torch.testing.assert_close(found, given_values[f"{name}_{tag}"], rtol=0, atol=1e-11)


def test_golden_covariances(given_values, golden_surrogate):
    surrogate = golden_surrogate()
    test = surrogate.kernel_distance.prepare(given_values["theta_test"])
    own, cross = surrogate.kernel(surrogate.prepared, surrogate.prepared), surrogate.cross(test).mT
    for found, name in ((own, "K"), (cross, "k_data_test"), (surrogate.kernel(test, test), "k_test_test")):
        torch.testing.assert_close(found, given_values[name], rtol=0, atol=1e-13)


def test_golden_integral(given_values, golden_surrogate, golden_nodes):
    surrogate, nodes = golden_surrogate(), golden_nodes
    mean, _ = integrals(surrogate, nodes)
    torch.testing.assert_close(mean.sum(), given_values["integral_mean"], rtol=0, atol=1e-13)
    variance = given_values["integral_var_same_sample"]
    torch.testing.assert_close(integral_covariance(surrogate, nodes).sum(), variance, rtol=1e-10, atol=0)
    expected = given_values["loglik_max"] + given_values["integral_mean"].log()
    found = estimate_evidence(surrogate, nodes, nodes)
    assert found.log_evidence == pytest.approx(float(expected), rel=0, abs=1e-13)


def test_integrals_written_out():
    surrogate = surrogate_for(nugget=1e-3)
    nodes = draw_nodes(surrogate.kernel_distance.prior, 6, generator=seeded(1))
    few = nodes.first(4)
    K = surrogate.kernel(surrogate.prepared, surrogate.prepared).numpy() + 1e-3 * np.eye(len(surrogate.roots))
    inverse, z, alpha = np.linalg.inv(K), surrogate.roots.numpy(), float(surrogate.alpha)

    def pieces(some):
        prepared = surrogate.kernel_distance.prepare(some.cube)
        k = surrogate.cross(prepared).numpy()
        return k @ inverse @ z, surrogate.kernel(prepared, prepared).numpy() - k @ inverse @ k.T

    mean, covariance = np.zeros(3), np.zeros((3, 3))
    m, _ = pieces(nodes)
    for s in range(len(m)):
        mean[int(nodes.components[s]) - 1] += float(nodes.weights[s]) * (alpha + m[s] ** 2 / 2)
    m, C = pieces(few)
    for s, t in np.ndindex(C.shape):
        place = int(few.components[s]) - 1, int(few.components[t]) - 1
        covariance[place] += float(few.weights[s] * few.weights[t]) * m[s] * C[s, t] * m[t]
    np.testing.assert_allclose(integrals(surrogate, nodes)[0], mean, rtol=1e-10)
    np.testing.assert_allclose(integral_covariance(surrogate, few), covariance, rtol=1e-7, atol=1e-12)
    found = estimate_evidence(surrogate, nodes, few)
    np.testing.assert_allclose(found.log_parts, float(surrogate.log_scale) + np.log(mean), rtol=1e-12)
    np.testing.assert_allclose(found.log_parts_sd, np.sqrt(np.diag(covariance)) / mean, rtol=1e-6)


def test_posterior_and_evidence_deviations_by_differentiation():
    covariance = tensor([4.0, 1.0, -1.0], [1.0, 2.0, 0.5], [-1.0, 0.5, 3.0]) * 1e-4
    mean = tensor(0.2, 0.3, 0.1)
    integral = evidence_of(tensor(-100.0)[0], mean, mean.expand(10, -1), covariance)  # replicates that all agree
    slope = torch.autograd.functional.jacobian(lambda mean: mean / mean.sum(), mean)
    expected = (slope @ covariance @ slope.mT).diagonal().sqrt()
    torch.testing.assert_close(integral.posterior_sd, expected, rtol=1e-12, atol=1e-9)
    assert integral.log_evidence == pytest.approx(-100.0 + np.log(0.6), abs=1e-12)
    # a log-normal number with these moments has this deviation of the logarithm
    sd = integral.log_evidence_sd
    moments = stats.lognorm(sd, scale=0.6 * np.exp(-0.5 * sd**2)).stats("mv")
    assert float(moments[0]) == pytest.approx(0.6, rel=1e-12)
    assert float(moments[1]) == pytest.approx(float(covariance.sum()), rel=1e-9)


def test_the_share_of_the_jackknife_in_the_deviations():
    rng = np.random.default_rng(0)
    replicates = rng.uniform(0.1, 0.3, size=(10, 3))
    mean = tensor(0.2, 0.2, 0.2)
    integral = evidence_of(mean.new_zeros(()), mean, torch.tensor(replicates), torch.zeros(3, 3).double())
    logs, shares = np.log(replicates.sum(1)), replicates / replicates.sum(1, keepdims=True)
    for found, values in ((integral.log_evidence_sd, logs), (integral.posterior_sd, shares)):
        expected = np.sqrt(0.9 * ((values - values.mean(0)) ** 2).sum(0))
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_replicates_are_the_integrals_of_surrogates_that_lack_every_tenth():
    surrogate = surrogate_for(each=8, nugget=1e-3)
    nodes = draw_nodes(surrogate.kernel_distance.prior, 8, generator=seeded(1))
    _, found = integrals(surrogate, nodes)
    assert found.shape == (10, 3)
    for group in range(10):
        kept = torch.arange(24) % 10 != group
        evaluations = Evaluations(*(column[kept] for column in surrogate.evaluations))
        alone = Surrogate(evaluations, surrogate.kernel_distance, surrogate.parameters)
        # the same warp: roots over the largest and the smallest likelihood of all
        latent = alone.cross(alone.kernel_distance.prepare(nodes.cube)) @ alone.solve(surrogate.roots[kept])
        values = nodes.weights * (surrogate.alpha + latent.square() / 2)
        expected = [values[nodes.components == n].sum() for n in (1, 2, 3)]
        torch.testing.assert_close(found[group], torch.stack(expected), rtol=1e-8, atol=1e-12)


def test_failed_likelihoods_are_left_out():
    one = surrogate_for()
    cube = torch.cat([one.evaluations.cube, one.kernel_distance.prior.draw(3, 1)])
    values = torch.cat([one.evaluations.log_likelihood, tensor(torch.nan, -torch.inf, torch.nan)])
    evaluations = Evaluations(cube, values)
    other = Surrogate(evaluations, one.kernel_distance, one.parameters)
    assert evaluations.num_failed == 2
    assert torch.equal(other.solved, one.solved)
    assert torch.equal(other.evaluations.cube, one.evaluations.cube)


def test_best_kernels_and_appending():
    evaluations = Evaluations(torch.arange(4.0).unsqueeze(-1), torch.tensor([1.0, torch.nan, 3.0, 2.0]))
    assert evaluations.best(2).cube.squeeze(-1).tolist() == [2.0, 3.0]
    assert evaluations.best(9).log_likelihood.tolist() == [3.0, 2.0, 1.0]
    longer = evaluations.append(torch.tensor([[7.0]]), torch.tensor([9.0]))
    assert longer.best(1).cube.item() == 7.0
    assert evaluations.log_likelihood.numel() == 4


def test_the_output_scale_is_the_best_for_the_length_scale_found():
    surrogate = surrogate_for()
    distances = surrogate.kernel_distance.between(surrogate.prepared, surrogate.prepared)
    fitted = fit_parameters(surrogate.roots, distances)

    def worse(log_scale):
        covariance = log_correlations(distances, fitted).exp().numpy()
        covariance += float(fitted.noise / fitted.outputscale) * np.eye(12)
        return -stats.multivariate_normal(np.zeros(12), np.exp(log_scale) * covariance).logpdf(surrogate.roots.numpy())

    best = minimize_scalar(worse, bracket=(-2.0, 2.0))
    assert fitted.outputscale.log().item() == pytest.approx(best.x, abs=1e-6)


@pytest.mark.parametrize(("true", "num_scalars"), [(0.1, 1), (0.5, 0), (2.0, 1)])
def test_a_fit_finds_the_length_scale_of_drawn_functions(true, num_scalars):
    """To within a factor, the average of the logarithms over a few functions."""
    prior = prior_of(2, scale=2.0, **({"noise": inferred(1e-2, 1.0)} if num_scalars else {}))
    kernel_distance = KernelDistance(prior, SMOOTH_ENERGY)
    found = []
    for seed in range(4):
        generator = seeded(seed)
        prepared = kernel_distance.prepare(draws_of_every_size(prior, 30, generator))
        distances = kernel_distance.between(prepared, prepared)
        parameters = SurrogateParameters(*tensor(1.0, true, 1.5, 1e-6))
        gram = log_correlations(distances, parameters).exp() + 1e-6 * torch.eye(60)
        normals = torch.randn(60, dtype=torch.float64, generator=generator)
        fitted = fit_parameters(torch.linalg.cholesky(gram) @ normals, distances)
        found.append([fitted.lengthscale.log().item(), fitted.outputscale.log().item()])
    np.testing.assert_allclose(np.mean(found, 0), [np.log(true), 0.0], rtol=0, atol=np.log(2.5))


DEGENERATE = {
    "spike": (tensor(0.0, 0.0, 0.0, 1.4, 0.0, 0.0), tensor(0.0, 1.0, 2.0, 3.0, 4.0, 5.0)),
    "all zero": (tensor(0.0, 0.0, 0.0), tensor(0.0, 1.0, 2.0)),
    "all equal": (tensor(1.0, 1.0, 1.0, 1.0), tensor(0.0, 1.0, 2.0, 3.0)),
    "duplicates": (tensor(1.0, 1.0, 0.2, 0.2), tensor(0.0, 0.0, 3.0, 3.0)),
    "contradicting duplicates": (tensor(1.0, 0.1, 0.2, 0.3), tensor(0.0, 0.0, 3.0, 3.0)),
    "one place": (tensor(1.0, 1.0, 1.0), tensor(2.0, 2.0, 2.0)),
    "one value": (tensor(1.4), tensor(2.0)),
    "near duplicates": (tensor(1.0, 1.0, 1.0), tensor(0.0, 1e-9, 1.0)),
}


def test_a_fit_survives_degenerate_roots():
    for roots, places in DEGENERATE.values():
        squares = (places.unsqueeze(-1) - places).square()
        fitted = fit_parameters(roots, Distances(squares, torch.zeros_like(squares)))
        assert all(bool(value.isfinite()) and value > 0 for value in fitted)


def test_a_surrogate_of_a_spike_and_of_duplicates():
    for repeats in [1, 3]:
        prior = prior_of()
        cube = prior.draw(10, 2, generator=seeded(0)).repeat(repeats, 1)
        values = -2000.0 * torch.ones(10, dtype=torch.float64)
        values[3] = 0.0
        surrogate = Surrogate(Evaluations(cube, values.repeat(repeats)), KernelDistance(prior, SMOOTH_ENERGY))
        assert surrogate.alpha == 0.0
        nodes = draw_nodes(prior, 16, generator=seeded(1))
        integral = estimate_evidence(surrogate, nodes, nodes)
        assert math.isfinite(integral.log_evidence)
        assert integral.log_evidence_sd > 0, "may be infinite: without the spike there is nothing; but it is a number"
        assert bool((integral.posterior_sd >= 0).all())


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 12), spread=st.sampled_from([0.0, 1e-9, 1.0, 50.0, 1e4]))
def test_any_log_likelihoods_have_a_surrogate(seed, count, spread):
    rng = np.random.default_rng(seed)
    prior = prior_of(2, noise=inferred(1e-2, 1.0))
    cube = prior.draw(count, 1 + seed % 2, generator=seeded(seed))
    cube = cube[torch.tensor(rng.integers(0, count, count))]  # some of them twice
    values = torch.tensor(spread * rng.normal(size=count))
    surrogate = Surrogate(Evaluations(cube, values), KernelDistance(prior, SMOOTH_ENERGY))
    mean, _ = surrogate.likelihood(prior.draw(5, 2, generator=seeded(1)))
    assert bool(mean.isfinite().all())
    assert bool((mean >= surrogate.alpha - 1e-12).all())


def test_no_likelihood_at_all():
    for values in [tensor(torch.nan, torch.nan), tensor()]:
        prior = prior_of()
        evaluations = Evaluations(prior.draw(2, 1)[: len(values)], values)
        with pytest.raises(ValueError, match=f"none of {len(values)} kernels has a likelihood"):
            Surrogate(evaluations, KernelDistance(prior, SMOOTH_ENERGY))
        parameters = SurrogateParameters(*tensor(1.0, 1.0, 1.0, 1e-6))
        with pytest.raises(ValueError, match=r"none of .* has a likelihood"):
            Surrogate(evaluations, KernelDistance(prior, SMOOTH_ENERGY), parameters)


def test_derivatives_of_the_moments_in_the_cube():
    surrogate = surrogate_for(nugget=1e-3, outputscale=inferred(1.0, 0.5))
    prior = surrogate.kernel_distance.prior
    points = uniform(2, len(prior.active_columns(2)), seed=3, low=0.1, high=0.9).requires_grad_()
    assert torch.autograd.gradcheck(lambda some: tuple(surrogate.likelihood(prior.embed(some, 2))), (points,))
