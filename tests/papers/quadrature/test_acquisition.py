"""Acquisition functions: golden values, refitting as the definition, derivatives, batches, pending points."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.papers.quadrature.policies import InformationGain, LikelihoodUncertainty
from gp_ensembles.papers.quadrature.prior import inferred
from gp_ensembles.papers.quadrature.quadrature import draw_nodes
from gp_ensembles.papers.quadrature.surrogate import Surrogate
from tests.papers.quadrature.cases import draws_of_every_size, seeded, surrogate_for, uniform


def case_of(seed=0, noise=1e-4, per_size=12):
    surrogate = surrogate_for(seed, nugget=noise, noise=inferred(1e-2, 1.0))
    return surrogate, draw_nodes(surrogate.kernel_distance.prior, per_size, generator=seeded(seed + 1))


def mixed_rows(prior, each, seed):
    generator = seeded(seed)
    rows = draws_of_every_size(prior, each, generator)
    return rows[torch.randperm(len(rows), generator=generator)]


ACQUISITIONS = {
    "information": InformationGain,
    "uncertainty": lambda surrogate, _, **some: LikelihoodUncertainty(surrogate, **some),
}


def nats(log_share):
    """The mutual information."""
    return -0.5 * torch.log1p(-log_share.exp())


def test_golden_information(given_values, golden_surrogate, golden_nodes):
    acquisition, test = InformationGain(golden_surrogate(), golden_nodes), given_values["theta_test"]
    torch.testing.assert_close(acquisition.variance, given_values["integral_var_same_sample"], rtol=1e-10, atol=0)
    torch.testing.assert_close(acquisition.share(test.unsqueeze(-2)), given_values["rho2"], rtol=0, atol=1e-11)
    for batches, name in (
        (test.unsqueeze(-2), "info"),
        (test.reshape(6, 2, 9), "info_batch2"),
        (test.reshape(4, 3, 9), "info_batch3"),
        (test[given_values["mixed_batches"]], "info_mixed_batch3"),
    ):
        torch.testing.assert_close(nats(acquisition(batches)), given_values[name], rtol=0, atol=1e-11)


def test_golden_information_with_pending_points(given_values, golden_surrogate, golden_nodes):
    test = given_values["theta_test"]
    batches, values = given_values["mixed_batches"].tolist(), given_values["info_mixed_batch3"]
    for (first, *rest), expected in zip(batches, values, strict=True):
        acquisition = InformationGain(golden_surrogate(), golden_nodes, X_pending=test[rest])
        torch.testing.assert_close(nats(acquisition(test[[first]])).squeeze(0), expected, rtol=0, atol=1e-11)


def test_golden_derivatives_of_the_information(given_values, golden_surrogate, golden_nodes):
    acquisition = InformationGain(golden_surrogate(), golden_nodes)
    test = given_values["theta_test"].clone().requires_grad_()
    (slope,) = torch.autograd.grad(nats(acquisition(test.unsqueeze(-2))).sum(), test)
    for row, n in enumerate(given_values["n_test"].tolist()):
        used = torch.tensor([part * 3 + q for part in range(3) for q in range(n)])  # the file has no padding
        expected = given_values["info_grad"][row]
        assert bool(expected[3 * n :].isnan().all())
        torch.testing.assert_close(slope[row, used], expected[: 3 * n], rtol=1e-6, atol=1e-8)


def test_golden_uncertainty(given_values, golden_surrogate):
    for noise, tag in [(0.0, "noise0"), (1e-3, "noise1e3")]:
        surrogate = golden_surrogate(noise)
        found = LikelihoodUncertainty(surrogate)(given_values["theta_test"].unsqueeze(-2))
        # the file's values are densities over mixtures, their prior included, and its variances are without noise
        _, covariance = surrogate.latent(given_values["theta_test"])
        own = covariance.diagonal()
        found = found - (own + noise).log() + own.log() - 2.0 * surrogate.kernel_distance.prior.log_prob_components[0]
        expected = given_values[f"uncertainty_{tag}"] - 2.0 * given_values["log_prior"]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@settings(max_examples=25)
@given(seed=st.integers(0, 40), q=st.integers(1, 4), noise=st.sampled_from([1e-6, 1e-4, 1e-2]))
def test_the_share_explained_is_what_refitting_takes_from_the_variance(seed, q, noise):
    """The variance of the same linear functional of the latent process before and after the points are observed."""
    surrogate, nodes = case_of(seed, noise)
    explained = InformationGain(surrogate, nodes)
    batch = mixed_rows(surrogate.kernel_distance.prior, 3, seed + 100)[:q]
    mean, covariance = surrogate.latent(nodes.cube)
    functional = nodes.weights * mean
    before = functional @ covariance @ functional
    evaluations = surrogate.evaluations.append(batch, torch.full((q,), -45.0, dtype=torch.float64))
    more = Surrogate(evaluations, surrogate.kernel_distance, surrogate.parameters)
    after = functional @ more.latent(nodes.cube)[1] @ functional
    found = explained.share(batch)
    assert explained.variance.item() == pytest.approx(before.item(), rel=1e-9)
    assert found.item() == pytest.approx(1.0 - after.item() / before.item(), abs=1e-9)
    assert 0.0 <= found.item() <= 1.0


def test_uncertainty_written_out():
    surrogate, _ = case_of(noise=1e-3)
    prior = surrogate.kernel_distance.prior
    rows = mixed_rows(prior, 4, 3).reshape(4, 3, -1)
    latent = [surrogate.latent(batch) for batch in rows]
    expected = []
    for batch, (mean, covariance) in zip(rows, latent, strict=True):
        noisy = covariance.detach().numpy() + 1e-3 * np.eye(3)
        spread = mean.numpy()[:, None] * noisy * mean.numpy()
        log_prior = prior.log_prob_components[prior.num_components(batch) - 1].sum()
        expected.append(np.linalg.slogdet(spread)[1] + 2.0 * float(log_prior))
    np.testing.assert_allclose(LikelihoodUncertainty(surrogate)(rows), expected, rtol=1e-9)


@pytest.mark.parametrize(("name", "sizes"), [("information", (3, 1)), ("uncertainty", (2, 1))])
def test_derivatives_in_the_cube(name, sizes):
    case = case_of(noise=1e-3)
    prior = case[0].kernel_distance.prior
    acquisition = ACQUISITIONS[name](*case)
    points = [uniform(len(prior.active_columns(n)), seed=5 + n, low=0.1, high=0.9).requires_grad_() for n in sizes]

    def value(*parts):
        return acquisition(torch.stack([prior.embed(part, n) for part, n in zip(parts, sizes, strict=True)]))

    assert torch.autograd.gradcheck(value, tuple(points), eps=1e-6, atol=1e-6, rtol=1e-4)


def test_coinciding_points_have_a_value_and_a_gradient():
    """What BoTorch's optimizers are handed; they stop at one that is not a number."""
    for noise in [0.0, 1e-12, 1e-6]:
        case = case_of(noise=noise)
        fresh = case[0].kernel_distance.prior.draw(1, 2, generator=seeded(4))
        known = case[0].evaluations.cube[:1]
        batches = fresh.expand(3, -1), torch.cat([known, known]), torch.cat([fresh, known]), known
        for make, batch in product(ACQUISITIONS.values(), batches):
            batch = batch.clone().requires_grad_()
            value = make(*case)(batch)
            (slope,) = torch.autograd.grad(value.sum(), batch)
            assert bool(value.isfinite().all() & slope.isfinite().all())
