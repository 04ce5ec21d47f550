"""The online step: posterior, embeddings and neighbors, against filters, dense algebra and automatic derivatives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.features.fourier import fourier_features
from gp_ensembles.filters import gaussian_state, textbook_filter
from gp_ensembles.papers.gplvm.embed import (
    LatentModel,
    embed_rows,
    embedding_derivatives,
    learn_rows,
    predict_rows,
    weight_prior,
)
from gp_ensembles.papers.gplvm.neighbors import keep_rows, nearest_rows, row_store


def normals(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def scales(num_experts):
    """Prior variances and noises that differ."""
    steps = torch.arange(num_experts, dtype=torch.float64)
    return 0.5 + steps, 0.01 * (1 + steps)


def learned(generator, num_latent=2, num_outputs=4, num_rows=25):
    """Two experts that have learned some rows, with three frequencies each."""
    prior_variance, noise = scales(2)
    omega, X = normals(generator, 2, 3, num_latent), normals(generator, 2, num_rows, num_latent)
    prior = weight_prior(noise / prior_variance, 6, num_outputs)
    Y = normals(generator, num_rows, num_outputs)
    return LatentModel(omega, learn_rows(prior, fourier_features(omega, X), Y), noise, 1.5)


def one_by_one(posterior, Phi, Y):
    for t in range(len(Y)):
        posterior = learn_rows(posterior, Phi[:, t : t + 1], Y[t : t + 1])
    return posterior


@pytest.mark.parametrize("walking", [False, True])
def test_the_posterior_is_the_gaussian_filters(generator, walking):
    (prior_variance, noise), Phi, Y = scales(3), normals(generator, 3, 40, 6) / 6**0.5, normals(generator, 40, 5)
    posterior, step = weight_prior(noise / prior_variance, 6, 5), 0.02 * prior_variance
    found = []
    for row, y in zip(Phi.split(1, dim=1), Y.split(1), strict=True):
        posterior = LatentModel(row, posterior, noise, 1.0, step / noise if walking else None).ahead().posterior
        found.append(predict_rows(posterior, row, noise))
        posterior = learn_rows(posterior, row, y)
    means, variances = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
    covariance = noise[:, None, None] * posterior.factor @ posterior.factor.mT
    prior, steps = gaussian_state(prior_variance, 6), step.unsqueeze(-1) if walking else None
    for output in range(5):
        state, expected = textbook_filter(prior, Phi, Y[:, output].expand(3, -1), noise, steps)
        ours = means[..., output], variances, posterior.mean[..., output], covariance
        theirs = expected.mean, expected.variance, state.mean, state.covariance
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


@pytest.mark.slow
def test_the_factor_after_ten_thousand_rows_is_the_refactorized_one(generator):
    (prior_variance, noise), omega = scales(2), normals(generator, 2, 4, 2)
    ratio = noise / prior_variance
    Phi, Y = fourier_features(omega, normals(generator, 2, 10_000, 2)), normals(generator, 10_000, 2)
    posterior = one_by_one(weight_prior(ratio, 8, 2), Phi, Y)
    information = Phi.mT @ Phi + torch.diag_embed(ratio.unsqueeze(-1).expand(-1, 8))
    refactorized = torch.linalg.cholesky(information).mT
    turned = refactorized @ posterior.factor  # a rotation, for both are square roots of one matrix
    torch.testing.assert_close(turned @ turned.mT, torch.eye(8, dtype=torch.float64).expand(2, 8, 8), atol=1e-8, rtol=0)
    inverse = posterior.factor @ posterior.factor.mT
    torch.testing.assert_close(inverse, torch.cholesky_inverse(refactorized, upper=True), atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(posterior.mean, torch.linalg.solve(information, Phi.mT @ Y), atol=1e-8, rtol=1e-8)


def test_single_precision_keeps_the_variance_of_rows_with_little_noise(generator):
    """Below the noise of 1e-4 the covariance itself is lost in float32 (46 % off, or not positive); its root is not."""
    prior_variance, noise = torch.full((1,), 1.0, dtype=torch.float64), torch.full((1,), 1e-4, dtype=torch.float64)
    Phi = fourier_features(normals(generator, 1, 25, 2), normals(generator, 1, 600, 2))
    Y = Phi[0] @ normals(generator, 50, 3) + 0.01 * normals(generator, 600, 3)
    exact = learn_rows(weight_prior(noise / prior_variance, 50, 3), Phi, Y)
    single = one_by_one(weight_prior((noise / prior_variance).float(), 50, 3), Phi.float(), Y.float())
    (mean, variance), (near, close) = (
        predict_rows(posterior, Phi.to(posterior.mean), noise.to(posterior.mean)) for posterior in (exact, single)
    )
    # Of 600 float32 steps the variance was 2e-5 and the mean 1e-3 of the noise's deviation off.
    torch.testing.assert_close(close.double() / noise - 1, variance / noise - 1, rtol=1e-3, atol=0)
    assert float((near.double() - mean).abs().max()) < 0.01 * 0.01


@pytest.mark.parametrize("num_latent", [1, 2, 5])
def test_derivatives_are_autograds_and_those_of_finite_differences(generator, num_latent):
    model = learned(generator, num_latent=num_latent)
    X, Y = normals(generator, 2, 3, num_latent), normals(generator, 3, 4)
    Y[0, 1] = Y[2, 0] = Y[2, 3] = torch.nan
    _, gradient, hessian = embedding_derivatives(model, X, Y)

    def total(X):
        return embedding_derivatives(model, X, Y)[0].sum()

    torch.testing.assert_close(gradient, torch.func.grad(total)(X))
    full = torch.func.hessian(total)(X)
    for expert in range(2):
        for row in range(3):
            torch.testing.assert_close(hessian[expert, row], full[expert, row, :, expert, row])
    assert torch.autograd.gradcheck(total, X.clone().requires_grad_())


@settings(max_examples=20)
@given(seed=st.integers(0, 2**20), num_latent=st.integers(1, 4), gap=st.booleans(), spread=st.floats(0.1, 10.0))
def test_an_embedding_is_stationary_and_no_worse_than_its_start(seed, num_latent, gap, spread):
    generator = torch.Generator().manual_seed(seed)
    model = learned(generator, num_latent=num_latent)
    start, Y = spread * normals(generator, 2, 6, num_latent), normals(generator, 6, 4)
    if gap:
        Y[2, 1:] = torch.nan
    found = embed_rows(model, start, Y, max_iterations=300)
    before, after = embedding_derivatives(model, start, Y)[0], found.log_prob + found.log_latent
    assert bool((after >= before - 1e-12).all())
    assert bool(found.converged.all())
    _, gradient, hessian = embedding_derivatives(model, found.point, Y)
    assert float(gradient.abs().max()) < 1e-2
    assert float(torch.linalg.eigvalsh(hessian).max()) < 1e-2 * float(hessian.abs().max())


@settings(max_examples=25)
@given(seed=st.integers(0, 2**20), gaps=st.booleans())
def test_neighbors_are_the_nearest(seed, gaps):
    generator = torch.Generator().manual_seed(seed)
    rows, Y = normals(generator, 40, 3), normals(generator, 7, 3)
    if gaps:
        Y[0, 0] = Y[3, 1] = Y[3, 2] = torch.nan
    store = row_store(rows, 50, 3, (1, 1))
    keep_rows(store, rows, rows.new_zeros(40, 1, 1), seed=0)
    distance = (Y.unsqueeze(1) - rows).square().nansum(-1)
    assert torch.equal(nearest_rows(store, Y, 5), distance.sort(-1).indices[:, :5])
    assert torch.equal(nearest_rows(store, Y, 100), distance.sort(-1).indices)


def test_an_empty_store_has_no_neighbors():
    with pytest.raises(ValueError, match="no rows have been seen"):
        nearest_rows(row_store(torch.zeros(1), 3, 2, (1, 1)), torch.zeros(1, 2))


@pytest.mark.parametrize("cuts", [[1] * 60, [7, 13, 40], [60]])
def test_the_sample_does_not_depend_on_the_blocks(cuts):
    rows = torch.arange(60, dtype=torch.float64).unsqueeze(-1)
    whole, parts = (row_store(rows, 10, 1, (1, 1)) for _ in range(2))
    keep_rows(whole, rows, rows.unsqueeze(-1), seed=3)
    for block in rows.split(cuts):
        keep_rows(parts, block, block.unsqueeze(-1), seed=3)
    assert all(map(torch.equal, whole, parts))
    assert torch.equal(parts.rows, parts.embedding.squeeze(-1))


def test_the_sample_is_uniform():
    rows = torch.arange(20, dtype=torch.float64).unsqueeze(-1)
    counts = torch.zeros(20, dtype=torch.float64)
    for seed in range(600):
        store = row_store(rows, 5, 1, (1, 1))
        keep_rows(store, rows, rows.unsqueeze(-1), seed=seed)
        counts[store.rows.flatten().long()] += 1
    # 600 draws of 5 in 20: mean 150, standard deviation 10.6.
    assert float((counts - 150).abs().max()) < 45
