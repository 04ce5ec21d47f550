"""What a class teaches its latent vector: moments by dense quadrature, modes far away, and Newton's limits."""

import pytest
import torch

from gp_ensembles.experts.latent_update import LaplaceUpdate, MomentMatchingUpdate
from gp_ensembles.filters import update_block
from gp_ensembles.filters.sites import ConvergenceWarning
from gp_ensembles.filters.states import GaussianState

F = 2


def softmax(z, y):
    return z.log_softmax(-1).gather(-1, y.long().unsqueeze(-1)).squeeze(-1)


def spread_out(size, scale, seed):
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scale * (0.5 * torch.diag(torch.ones(size, dtype=torch.float64)) + 0.5 * root @ root.mT / size)


def dense_moments(mean, covariance, y, num_places=121, reach=10):
    """Mean and covariance of a latent vector given its class: a trapezoidal rule over the whole space."""
    axis = torch.linspace(-reach, reach, num_places, dtype=torch.float64)
    whitened = torch.cartesian_prod(*[axis] * mean.shape[-1])
    latent = mean + whitened @ torch.linalg.cholesky(covariance).mT
    log_density = softmax(latent, y.expand(latent.shape[0])) - 0.5 * whitened.square().sum(-1)
    share = log_density.softmax(0).unsqueeze(-1)
    center = (share * latent).sum(0)
    return center, (share * (latent - center)).mT @ (latent - center)


@pytest.mark.parametrize(("num_classes", "y"), [(2, 0.0), (3, 1.0)])
def test_weights_after_a_row_have_their_exact_moments(num_classes, y):
    """All that a row says passes through its latent vector, on which the weights regress linearly."""
    size = num_classes * F
    target = torch.tensor([y], dtype=torch.float64)
    prior_mean = torch.linspace(-0.7, 0.9, size, dtype=torch.float64)
    prior = spread_out(size, 1.0, seed=1)
    phi = torch.tensor([0.8, -1.1], dtype=torch.float64)
    design = torch.block_diag(*[phi.unsqueeze(0)] * num_classes)
    rule = MomentMatchingUpdate().vector_rule(softmax, num_classes, prior)
    state = GaussianState(torch.cat([prior, prior_mean.unsqueeze(-1)], dim=-1))
    state, latent = update_block(state, phi.unsqueeze(0), target, None, rule)
    before, spread = design @ prior_mean, design @ prior @ design.mT
    torch.testing.assert_close((latent.mean[0], latent.variance[0]), (before, spread))
    center, after = dense_moments(before, spread, target)
    slope = prior @ design.mT @ torch.linalg.inv(spread)
    torch.testing.assert_close(state.mean, prior_mean + slope @ (center - before), rtol=0, atol=1e-5)
    torch.testing.assert_close(state.covariance, prior + slope @ (after - spread) @ slope.mT, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("num_classes", "scale", "surprise", "tolerance"),
    [
        (2, 1.0, 0.0, 1e-10),
        (2, 4.0, 5.0, 1e-6),
        (2, 25.0, 0.0, 1e-3),
        (2, 25.0, 5.0, 1e-3),
        (3, 1.0, 5.0, 1e-6),
        (3, 4.0, 0.0, 5e-5),
        (3, 25.0, 5.0, 6e-3),
    ],
)
def test_wide_priors_and_surprises_are_resolved(num_classes, scale, surprise, tolerance):
    """Errors in prior standard deviations and variances; fixed nodes are wrong by a third for a surprise."""
    covariance = spread_out(num_classes, scale, seed=2)
    mean = torch.zeros(num_classes, dtype=torch.float64)
    mean[1] = -surprise * scale**0.5
    y = torch.ones((), dtype=torch.float64)
    gradient, curvature = MomentMatchingUpdate().vector_rule(softmax, num_classes, mean).solve(mean, covariance, y)
    center, after = dense_moments(mean, covariance, y)
    torch.testing.assert_close((mean + covariance @ gradient - center) / scale**0.5, 0 * mean, rtol=0, atol=tolerance)
    got = covariance - covariance @ curvature @ covariance
    torch.testing.assert_close((got - after) / scale, 0 * after, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("scale", "surprise", "tolerance"), [(1.0, 0.0, 1.5e-2), (4.0, 3.0, 1.5e-2), (9.0, 0.0, 2e-2)])
def test_sobol_nodes_are_good_to_two_per_cent(scale, surprise, tolerance):
    """Five classes have too many axes for a grid of the nodes that are allowed."""
    mean = torch.tensor([-surprise * scale**0.5, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    covariance = torch.diag(torch.full_like(mean, scale))
    sizes = []

    def counted(z, y):
        sizes.append(z.numel() // 5)
        return softmax(z, y)

    gradient, curvature = MomentMatchingUpdate().vector_rule(counted, 5, mean).solve(mean, covariance, 0 * mean[0])
    assert max(sizes) <= 1024
    center, after = dense_moments(mean, covariance, 0 * mean[0], num_places=15, reach=6)
    torch.testing.assert_close((mean + scale * gradient - center) / scale**0.5, 0 * mean, rtol=0, atol=5e-3)
    got = covariance - covariance @ curvature @ covariance
    torch.testing.assert_close((got - after) / scale, 0 * after, rtol=0, atol=tolerance)


@pytest.mark.parametrize("num_classes", [3, 5])
def test_a_class_far_out_of_reach_leaves_a_covariance(num_classes):
    """All the mass lies on one node at first; the moments must be those of a distribution all the same."""
    mean = torch.zeros(num_classes, dtype=torch.float64)
    mean[0] = -60.0
    covariance = torch.diag(torch.full_like(mean, 25.0))
    rule = MomentMatchingUpdate().vector_rule(softmax, num_classes, mean)
    gradient, curvature = rule.solve(mean, covariance, 0 * mean[0])
    after = covariance - covariance @ curvature @ covariance
    assert float(torch.linalg.eigvalsh(0.5 * (after + after.mT))[0]) > 0.1
    assert float((mean + covariance @ gradient)[0]) > -45  # sure of the wrong class, a slope of one moves by 25


@pytest.mark.parametrize("noise", [1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("place", [0.3, 3.0, 9.0])
def test_a_sharp_density_between_the_nodes_is_found(noise, place):
    """Of a Gaussian density the posterior is known; at first all of its mass lies on one node."""
    mean = torch.zeros(2, dtype=torch.float64)
    covariance = spread_out(2, 1.0, seed=4)
    rule = MomentMatchingUpdate().vector_rule(lambda z, y: -0.5 * (z - place).square().sum(-1) / noise + 0 * y, 2, mean)
    gradient, curvature = rule.solve(mean, covariance, mean[0])
    identity = torch.diag(torch.ones_like(mean))
    want = torch.linalg.inv(covariance + noise * identity)
    torch.testing.assert_close(gradient, want @ torch.full_like(mean, place), rtol=1e-3, atol=0)
    torch.testing.assert_close(covariance @ curvature @ covariance, covariance @ want @ covariance, rtol=1e-3, atol=0)


def test_a_batch_of_vectors_is_its_members():
    covariance = torch.stack([spread_out(3, scale, seed) for seed, scale in enumerate((0.3, 1.0, 9.0))])
    mean = torch.tensor([[0.0, 1.0, -1.0], [2.0, 0.0, 0.0], [-9.0, 4.0, 4.0]], dtype=torch.float64)
    y = torch.zeros((), dtype=torch.float64)
    for latent_update in (LaplaceUpdate(), MomentMatchingUpdate()):
        rule = latent_update.vector_rule(softmax, 3, mean)
        with torch.no_grad():
            both = rule.solve(mean, covariance, y)
            for m in range(3):
                alone = rule.solve(mean[m], covariance[m], y)
                for one, many in zip(alone, both, strict=True):
                    torch.testing.assert_close(one, many[m], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("lead", [5.0, 40.0, 300.0])
def test_newton_comes_back_from_where_the_softmax_is_flat(scale, lead):
    """Sure of the wrong class, it has no curvature there: a full step goes far beyond the mode."""
    mean = torch.tensor([lead, 0.0, -lead], dtype=torch.float64)
    covariance = spread_out(3, scale, seed=3)
    y = torch.tensor(1.0, dtype=torch.float64)
    with torch.no_grad():
        gradient, curvature = LaplaceUpdate().vector_rule(softmax, 3, mean).solve(mean, covariance, y)
    probability = (mean + covariance @ gradient).softmax(-1)
    slope = torch.nn.functional.one_hot(y.long(), 3) - probability
    torch.testing.assert_close(gradient, slope, rtol=0, atol=1e-6)
    falls = torch.diag(probability) - torch.outer(probability, probability)
    identity = torch.diag(torch.ones_like(mean))
    want = torch.linalg.solve(identity + falls @ covariance, falls)
    torch.testing.assert_close(curvature, want, rtol=1e-5, atol=1e-8)


def test_newton_says_when_it_hits_the_cap():
    """The second expert's density grows faster along one axis than the prior falls: its mode lies at infinity.

    What it learns is then what the other axis says, on which the density falls.
    """
    bend = torch.tensor([[-1.0, -1.0], [5.0, -1.5]], dtype=torch.float64)
    rule = LaplaceUpdate().vector_rule(lambda z, y: (bend * z.square()).sum(-1) + 0 * y, 2, bend[0])
    mean = torch.ones(2, 2, dtype=torch.float64)
    covariance = torch.diag_embed(mean)
    with torch.no_grad(), pytest.warns(ConvergenceWarning, match="100 damped Newton steps for expert 1"):
        site = rule.solve(mean, covariance, mean[0, 0])
    falls = (-2 * bend).clamp_min(0)
    torch.testing.assert_close(site.curvature, torch.diag_embed(falls / (1 + falls)), rtol=0, atol=1e-9)
