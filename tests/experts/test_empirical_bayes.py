"""Fitting: every expert on its own, never worse, resumable after an error; Laplace samples against brute force."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import GammaPrior, LogNormalPrior

from gp_ensembles.experts import LBFGS, GaussianExpert, fit_empirical_bayes, sample_hyperparameters
from gp_ensembles.experts.empirical_bayes import (
    get_vectors,
    log_posterior,
    negative_hessian,
    search_starts,
    set_vectors_,
)
from gp_ensembles.experts.window import WindowExpert
from gp_ensembles.features import LinearFeatures, RadialBasisFeatures
from gp_ensembles.filters import RandomWalk
from gp_ensembles.numerics.kmeans import kmeans


def data(num_rows=120, seed=0):
    g = torch.Generator().manual_seed(seed)
    X = 2 * torch.randn(num_rows, 2, generator=g, dtype=torch.float64)
    y = torch.sin(X[:, 0]) + 0.3 * X[:, 1] + 0.2 * torch.randn(num_rows, generator=g, dtype=torch.float64)
    return X, y


def bumps(starts, seed=1):
    X, _ = data()
    scales = torch.tensor(starts, dtype=torch.float64).reshape(-1, 1)
    features = RadialBasisFeatures(kmeans(X, 15, generator=torch.Generator().manual_seed(seed)), scales)
    return GaussianExpert(features)


def test_batched_fit_equals_one_by_one():
    X, y = data()
    together = bumps([0.5, 2.0, 8.0])
    fit = fit_empirical_bayes(together, X, y)
    assert bool(fit.converged.all())
    for m, start in enumerate([0.5, 2.0, 8.0]):
        alone = bumps([start])
        single = fit_empirical_bayes(alone, X, y)
        torch.testing.assert_close(single.log_evidence[0], fit.log_evidence[m], rtol=0, atol=1e-3)


def test_a_search_that_goes_on_from_one_on_few_rows_ends_where_the_one_on_all_rows_does():
    X, y = data(400)
    whole, staged = (GaussianExpert(LinearFeatures(2, torch.ones((), dtype=torch.float64))) for _ in range(2))
    before, first = log_posterior(staged, X, y).detach(), fit_empirical_bayes(whole, X, y)
    early = search_starts(staged, X, y, (), num_rows=120)
    torch.testing.assert_close(log_posterior(staged, X, y).detach(), early.log_evidence)
    found = fit_empirical_bayes(staged, X, y, before=early)
    torch.testing.assert_close(found.log_evidence, first.log_evidence, rtol=0, atol=1e-3)
    assert float(before) < float(early.log_evidence) < float(found.log_evidence)


def test_of_several_starts_the_end_with_most_evidence_counts():
    X = torch.linspace(0, 1, 300, dtype=torch.float64).unsqueeze(-1)
    y = (80 * X.squeeze(-1)).sin()

    def fitted(*starts, length_scales=(), **options):
        expert = WindowExpert(ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=1)).double(), 1, 300)
        before = search_starts(expert, X, y, starts, **options) if options else None
        return float(fit_empirical_bayes(expert, X, y, length_scales=length_scales, before=before).log_evidence)

    short, long = (torch.tensor([scale], dtype=torch.float64) for scale in (0.02, 0.7))
    found = fitted(length_scales=(short,))
    assert found > fitted() + 300
    assert found == pytest.approx(fitted(long, short, long, num_rows=60), abs=0.1)


def test_the_gradient_vanishes_at_the_optimum():
    X, y = data()
    expert = bumps([2.0])
    fit_empirical_bayes(expert, X, y, LBFGS(max_iterations=500, gradient_tolerance=1e-8, loss_tolerance=0.0))
    value = log_posterior(expert, X, y)
    gradients = torch.autograd.grad(value.sum(), list(expert.parameters()))
    assert max(float(g.abs().max()) for g in gradients) / len(y) < 1e-5


def test_linear_model_noise_and_prior_match_a_grid():
    X, y = data()
    expert = GaussianExpert(LinearFeatures(2, torch.tensor(1.0, dtype=torch.float64)))
    fit = fit_empirical_bayes(expert, X, y)
    best = -torch.inf
    for log_prior in torch.linspace(-4, 3, 15, dtype=torch.float64):
        for log_noise in torch.linspace(-3, 1, 17, dtype=torch.float64):
            expert.features.prior.raw_value.data = expert.features.prior.constraint.inverse_transform(log_prior.exp())
            expert.likelihood.noise = log_noise.exp()
            best = max(best, float(log_posterior(expert, X, y).detach()))
    assert best <= float(fit.log_evidence) < best + 0.5


def test_priors_are_part_of_the_objective():
    X, y = data()
    likelihood = GaussianLikelihood(noise_prior=GammaPrior(2.0, 5.0)).double()
    expert = GaussianExpert(LinearFeatures(2, torch.tensor(1.0, dtype=torch.float64)), likelihood)
    plain = GaussianExpert(LinearFeatures(2, torch.tensor(1.0, dtype=torch.float64)), GaussianLikelihood().double())
    set_vectors_(plain, get_vectors(expert))
    extra = likelihood.noise_covar.noise_prior.log_prob(likelihood.noise).sum()
    torch.testing.assert_close(log_posterior(expert, X, y), log_posterior(plain, X, y) + extra)
    strong = GaussianLikelihood(noise_prior=LogNormalPrior(0.0, 1e-3)).double()
    expert = GaussianExpert(LinearFeatures(2, torch.tensor(1.0, dtype=torch.float64)), strong)
    fit_empirical_bayes(expert, X, y)
    assert float(strong.noise.detach()) == pytest.approx(1.0, rel=0.05)


def test_bad_input_is_said_and_changes_nothing():
    X, y = data()
    expert = bumps([2.0])
    before = get_vectors(expert)
    for bad_X, bad_y, kind, words in [
        (X, y[:-1], ValueError, "same N"),
        (X[:, :1], y, ValueError, "shape"),
        (X, y.float(), TypeError, "dtype"),
        (X, y * torch.nan, ValueError, "no target is observed"),
    ]:
        with pytest.raises(kind, match=words):
            fit_empirical_bayes(expert, bad_X, bad_y)
    assert torch.equal(get_vectors(expert), before)
    shared = bumps([2.0, 3.0])
    shared.likelihood = GaussianLikelihood().double()
    with pytest.raises(ValueError, match="shared by the 2 experts"):
        fit_empirical_bayes(shared, X, y)
    for parameter in expert.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable"):
        fit_empirical_bayes(expert, X, y)


def test_an_interrupted_fit_leaves_the_expert_as_it_was(monkeypatch):
    X, y = data()
    expert = bumps([2.0])
    before = get_vectors(expert)
    calls, original = [], GaussianExpert.log_evidence

    def interrupted(self, *rows):
        calls.append(1)
        if len(calls) > 4:
            raise KeyboardInterrupt
        return original(self, *rows)

    monkeypatch.setattr(GaussianExpert, "log_evidence", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit_empirical_bayes(expert, X, y)
    assert torch.equal(get_vectors(expert), before)


def test_hessian_equals_finite_differences():
    X, y = data(60)
    expert = bumps([2.0, 4.0])
    got = negative_hessian(expert, X, y)
    point = get_vectors(expert)
    step = 1e-4

    def gradient(vectors):
        set_vectors_(expert, vectors)
        parts = torch.autograd.grad(log_posterior(expert, X, y).sum(), list(expert.parameters()))
        return torch.cat([part.reshape(2, -1) for part in parts], dim=-1)

    for p in range(point.shape[1]):
        shift = torch.zeros_like(point)
        shift[:, p] = step
        column = -(gradient(point + shift) - gradient(point - shift)) / (2 * step)
        torch.testing.assert_close(got[:, :, p], column, rtol=1e-4, atol=1e-4)


def test_samples_have_the_laplace_covariance(generator):
    X, y = data()
    expert = GaussianExpert(LinearFeatures(2, torch.tensor(1.0, dtype=torch.float64)))
    fit_empirical_bayes(expert, X, y)
    samples, information = sample_hyperparameters(expert, X, y, 4000, 1e-6, generator=generator)
    assert (samples.batch_shape, int(information.num_floored)) == (torch.Size([4000]), 0)
    draws = get_vectors(samples)
    covariance = torch.linalg.inv(negative_hessian(expert, X, y)[0])
    error = torch.cov(draws.T) - covariance
    spread = covariance.diagonal().sqrt()
    assert float((error / spread / spread.unsqueeze(-1)).abs().max()) < 0.1
    assert float(((draws.mean(0) - get_vectors(expert)[0]) / spread).abs().max()) < 0.1
    torch.testing.assert_close(information.standard_deviations[0], spread)


def test_indefinite_hessians_are_floored_and_reported(generator):
    X, y = data()
    expert = bumps([0.05, 60.0])
    samples, information = sample_hyperparameters(expert, X, y, 50, 4.0, generator=generator)
    assert bool((information.num_floored > 0).any())
    modes = get_vectors(expert).repeat_interleave(50, dim=0)
    assert float((get_vectors(samples) - modes).abs().max()) < 0.5 * 6
    assert samples.features.centers.shape[0] == 100
    _state, steps = samples.update(samples.init(), X, y)
    assert bool(torch.isfinite(steps.log_prob).all())


def test_samples_keep_their_modes_features_and_walk(generator):
    X, y = data()
    base = bumps([1.0, 3.0])
    walk = torch.tensor([[0.0], [0.5]], dtype=torch.float64)
    expert = GaussianExpert(base.features, base.likelihood, RandomWalk(walk))
    samples, _ = sample_hyperparameters(expert, X, y, 3, generator=generator)
    assert samples.transition.variance.flatten().tolist() == [0.0] * 3 + [0.5] * 3
    assert torch.equal(samples.features.centers[3], base.features.centers[1])
    assert not torch.equal(samples.features.lengthscale[0], samples.features.lengthscale[1])
    with pytest.raises(ValueError, match="positive"):
        sample_hyperparameters(expert, X, y, 0)
