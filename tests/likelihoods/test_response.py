"""Densities given latent values: against other libraries, in the tails, batched, differentiated, traced."""

import itertools
import math
import threading

import mpmath
import pytest
import torch
from gpytorch.likelihoods import BernoulliLikelihood, PoissonLikelihood
from torch.distributions import Distribution

from gp_ensembles.likelihoods import LogPoissonLikelihood, MulticlassLikelihood
from gp_ensembles.likelihoods.poisson import LogRatePoisson
from gp_ensembles.likelihoods.response import conditional, latent_dim, log_prob
from gp_ensembles.numerics.derivatives import automatic, differentiate

NONE = torch.Size([])
LATENT = torch.tensor([-3.0, -0.7, 0.0, 0.4, 2.5], dtype=torch.float64)


def grid(case):
    """All pairs of latent values and legal targets."""
    y = torch.tensor(case.legal, dtype=torch.float64)
    return LATENT.repeat_interleave(len(y)), y.repeat(len(LATENT))


def vectors(num, generator):
    return torch.empty(num, 4, dtype=torch.float64).normal_(generator=generator)


def test_densities_equal_other_libraries_and_batches_one_by_one(scalar_case, take, generator):
    likelihood = scalar_case.build(NONE)
    latent, y = grid(scalar_case)
    expected = [
        float(mpmath.log(scalar_case.reference(likelihood, *pair)))
        for pair in zip(*map(list, map(torch.Tensor.tolist, (latent, y))), strict=True)
    ]
    torch.testing.assert_close(log_prob(likelihood, latent, y), latent.new_tensor(expected), rtol=1e-10, atol=1e-11)
    # The conditional distribution is the likelihood's own, up to the exactness of tails.
    torch.testing.assert_close(conditional(likelihood, latent).log_prob(y), likelihood(latent).log_prob(y))
    y = torch.tensor(scalar_case.legal, dtype=torch.float64)
    for lead, batch_shape in (((), (3,)), ((5,), (2, 3))):
        likelihood = scalar_case.build(torch.Size(batch_shape))
        latent = torch.empty(*lead, *batch_shape, len(y), dtype=torch.float64).normal_(generator=generator)
        together = log_prob(likelihood, latent, y)
        assert together.shape == latent.shape
        for at in itertools.product(*map(range, batch_shape)):
            alone = log_prob(take(scalar_case, likelihood, at), latent[(..., *at, slice(None))], y)
            torch.testing.assert_close(together[(..., *at, slice(None))], alone, rtol=1e-13, atol=1e-14)


def test_class_densities_equal_the_softmax(vector_case, generator):
    likelihood = vector_case.build(NONE)
    latent = vectors(4, generator)  # as many rows as classes: no row may be taken for a class
    y = torch.arange(4, dtype=torch.float64)
    expected = [math.log(vector_case.reference(likelihood, *pair)) for pair in zip(latent, y, strict=True)]
    torch.testing.assert_close(log_prob(likelihood, latent, y), latent.new_tensor(expected))
    assert latent_dim(likelihood) == 4


def test_a_missing_target_teaches_nothing_and_tails_are_finite(case):
    likelihood = case.build(NONE)
    dim = latent_dim(likelihood)
    y = torch.tensor([case.legal[0], math.nan, case.legal[1]], dtype=torch.float64)
    latent = torch.full((3, dim) if dim > 1 else (3,), 0.3, dtype=torch.float64, requires_grad=True)
    values = log_prob(likelihood, latent, y)
    assert values.isnan().tolist() == [False, True, False]
    parameters = [parameter for parameter in likelihood.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(values.nansum(), [latent, *parameters], allow_unused=True)
    assert bool((gradients[0][1] == 0).all())
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients if gradient is not None)
    y = torch.tensor(case.legal, dtype=torch.float64)
    for place in (-40.0, -12.0, 12.0, 40.0):
        latent = torch.full_like(y, place) if dim == 1 else y.new_tensor([0.0, place, 0.0, 0.0]).repeat(len(y), 1)
        derivatives = differentiate(lambda z, target: log_prob(likelihood, z, target), latent, y, dim)
        assert bool(torch.isfinite(log_prob(likelihood, latent, y)).all())
        assert all(bool(torch.isfinite(part).all()) for part in derivatives)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")  # of torch, once
def test_derivatives_by_torch_func(scalar_case):
    """Gradient and second derivative of scalar latents under vmap, against central differences of higher precision."""
    likelihood = scalar_case.build(NONE)
    latent, y = grid(scalar_case)
    latent = latent + 0.01  # off the kink of a Laplace density at y

    def single(z, target):
        return log_prob(likelihood, z, target)

    assert single(latent[0], y[0]).shape == ()
    first = torch.func.vmap(torch.func.grad(single))(latent, y)
    second = torch.func.vmap(torch.func.hessian(single))(latent, y)
    step = 1e-4
    low, mid, high = (log_prob(likelihood, latent + shift, y).detach() for shift in (-step, 0.0, step))
    torch.testing.assert_close(first.detach(), (high - low) / (2 * step), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(second.detach(), (high - 2 * mid + low) / step**2, rtol=1e-3, atol=1e-5)
    elementwise = differentiate(lambda z, target: log_prob(likelihood, z, target), latent, y)
    torch.testing.assert_close(elementwise, (first, second))


def test_vector_derivatives_by_torch_func(vector_case, generator):
    likelihood = vector_case.build(NONE)
    latent, y = vectors(6, generator), torch.tensor([0.0, 1, 2, 3, 0, 1], dtype=torch.float64)

    def single(z, target):
        return log_prob(likelihood, z, target)

    hessian = torch.func.vmap(torch.func.hessian(single))(latent, y)
    mixing = getattr(likelihood, "mixing_weights", None)
    mixing = torch.eye(4, dtype=torch.float64) if mixing is None else mixing.detach()
    p = (latent @ mixing.mT).softmax(-1)
    expected = -mixing.mT @ (torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)) @ mixing
    torch.testing.assert_close(hessian.detach(), expected)
    torch.testing.assert_close(differentiate(single, latent, y, 4)[1].detach(), expected)


@pytest.mark.processor
def test_derivatives_can_be_recorded_for_loops(case, generator):
    likelihood = case.build(NONE)
    is_vector = latent_dim(likelihood) > 1
    y = torch.tensor(case.legal, dtype=torch.float64)
    latent = vectors(len(y), generator) if is_vector else LATENT[: len(y)] + 0.01
    calls = []

    def density(z, target):
        calls.append(1)
        return log_prob(likelihood, z, target)

    differentiator = automatic(density, latent_dim(likelihood)).derivatives
    with torch.no_grad():
        first = differentiator(latent, y)
        once = len(calls)
        assert torch.equal(differentiator(latent, y)[0], first[0])
        assert len(calls) == 2 * once > 0  # recording costs more than a short loop
        for _ in range(100):
            recorded = differentiator(latent, y)
        before = len(calls)
        differentiator(latent, y)
        assert len(calls) == before  # a recording has no call of it
    for derivatives in (first, differentiator(latent, y)):  # the same bits, so a stream may be cut anywhere
        assert all(map(torch.equal, recorded, derivatives))


def test_the_probit_tail_is_exact():
    latent = torch.tensor([-300.0, -50.0, -40.0, -9.0, 9.0, 40.0], dtype=torch.float64)
    expected, y = [], torch.ones_like(latent)
    with mpmath.workdps(60):
        for z in map(mpmath.mpf, latent.tolist()):
            hazard = mpmath.npdf(z) / mpmath.ncdf(z)
            expected.append([float(mpmath.log(mpmath.ncdf(z))), float(hazard), float(-hazard * (z + hazard))])
    probit = BernoulliLikelihood()
    derivatives = differentiate(lambda z, target: log_prob(probit, z, target), latent, y)
    found = torch.stack([log_prob(probit, latent, y), *derivatives], dim=-1)
    torch.testing.assert_close(found, found.new_tensor(expected), rtol=1e-8, atol=1e-300)


def test_log_poisson_is_safe_where_the_rate_is_not():
    for dtype in (torch.float32, torch.float64):
        latent = torch.tensor([-200.0, -50.0, 50.0], dtype=dtype)
        y = torch.tensor([3.0, 3.0, 3.0], dtype=dtype)
        expected = 3 * latent - latent.exp() - math.log(6)
        torch.testing.assert_close(log_prob(LogPoissonLikelihood(), latent, y), expected)
        derivatives = differentiate(lambda z, target: log_prob(LogPoissonLikelihood(), z, target), latent, y)
        torch.testing.assert_close(derivatives, (3 - latent.exp(), -latent.exp()))


def test_log_rate_poisson_is_a_whole_distribution():
    distribution = LogRatePoisson(torch.tensor([0.3, -1.0], dtype=torch.float64))
    larger = distribution.expand(torch.Size([3, 2]))
    assert larger.batch_shape == (3, 2)
    assert isinstance(larger, LogRatePoisson)
    torch.testing.assert_close(larger.mean[1], distribution.log_rate.exp())
    assert larger.sample().shape == (3, 2)


def test_the_default_validation_is_restored_by_threads_in_any_order(monkeypatch):
    monkeypatch.setattr(Distribution, "_validate_args", True)
    barrier = threading.Barrier(4)

    def work():
        barrier.wait()
        for _ in range(100):
            log_prob(PoissonLikelihood(), torch.zeros(1), torch.ones(1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Distribution._validate_args is True


def test_wrong_numbers_of_classes_are_refused():
    with pytest.raises(ValueError, match="at least two classes, got 1"):
        MulticlassLikelihood(1)
    with pytest.raises(ValueError, match=r"shape \(..., 3\).*got \(5, 2\)"):
        MulticlassLikelihood(3)(torch.zeros(5, 2))
