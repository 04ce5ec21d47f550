"""Sites of classes on plain arrays: the mode where the slope vanishes, the curvature by a dense inverse."""

import itertools

import numpy as np
import pytest
import torch

from gp_ensembles.experts.latent_update import LaplaceUpdate
from gp_ensembles.filters.softmax_site import softmax_site
from gp_ensembles.likelihoods import MulticlassLikelihood
from gp_ensembles.likelihoods.derivatives import known_vector_derivatives


def moments(num_experts, num_classes, scale, lead):
    rng = np.random.default_rng(num_classes)
    root = rng.normal(size=(num_experts, num_classes, num_classes + 1)) * scale
    mean = rng.normal(size=(num_experts, num_classes)) * scale
    mean[:, 0] += lead
    return mean, root @ root.swapaxes(1, 2)


@pytest.mark.parametrize("num_classes", [2, 3, 7])
def test_the_slope_of_the_posterior_vanishes_at_the_mode(num_classes):
    for scale, lead in itertools.product((0.1, 1.0, 10.0), (0.0, 40.0, 300.0)):
        mean, covariance = moments(4, num_classes, scale, lead)
        gradient, curvature = softmax_site(mean, covariance, 1)
        for m in range(4):
            point = mean[m] + covariance[m] @ gradient[m]
            shares = np.exp(point - point.max())
            shares /= shares.sum()
            np.testing.assert_allclose(gradient[m], np.eye(num_classes)[1] - shares, rtol=0, atol=1e-6)
            falls = np.diag(shares) - np.outer(shares, shares)
            want = np.linalg.solve(np.eye(num_classes) + falls @ covariance[m], falls)
            np.testing.assert_allclose(curvature[m], want, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_both_ways_of_the_rule_agree(scale):
    mean, covariance = (torch.from_numpy(part) for part in moments(5, 4, scale, 2.0))
    likelihood = MulticlassLikelihood(4)

    def log_density(z, y):
        return z.log_softmax(-1)[..., 2] + 0 * y

    rule = LaplaceUpdate().vector_rule(log_density, 4, mean, known_vector_derivatives(likelihood))
    y = torch.tensor(2.0, dtype=torch.float64)
    with torch.no_grad():
        plain = rule.solve(mean, covariance, y)
    recorded = rule.solve(mean.requires_grad_(), covariance, y)
    for one, other in zip(plain, recorded, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-10)
