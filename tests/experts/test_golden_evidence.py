"""Evidence of whole experts, features included, and its gradient in every hyperparameter, against frozen numbers."""

import numpy as np
import pytest
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from gp_ensembles.experts.evidence import log_evidence
from gp_ensembles.features import HilbertAdditiveFeatures, RadialBasisFeatures, RandomFourierFeatures
from gp_ensembles.features.hilbert import Box
from gp_ensembles.spectral.frequencies import BaseDraws


def scaled(kernel, numbers):
    """A kernel on log scales, with the frozen hyperparameters."""
    log = {"transform": torch.exp, "inv_transform": torch.log}
    kernel = kernel(lengthscale_constraint=Positive(**log))
    whole = ScaleKernel(kernel, outputscale_constraint=Positive(**log)).double()
    kernel.lengthscale = torch.as_tensor(numbers["lengthscale"]).unsqueeze(0)
    whole.outputscale = torch.as_tensor(numbers["var_theta"])
    return whole


def radial(numbers, data):
    features = RadialBasisFeatures(*(torch.as_tensor(numbers[k]) for k in ("centres", "lengthscale", "var_theta")))
    return features, features.raw_lengthscale, features.prior.raw_value


def fourier(numbers, data):
    num_inputs = data["X"].shape[1]
    kernel = scaled(lambda **c: RBFKernel(ard_num_dims=num_inputs, **c), numbers)
    normals = torch.as_tensor(numbers["freqs"])
    features = RandomFourierFeatures(kernel, num_inputs, BaseDraws(normals, normals.new_zeros(len(normals))))
    return features, kernel.base_kernel.raw_lengthscale, kernel.raw_outputscale


def hilbert(kernel):
    def build(numbers, data):
        num_inputs = data["X"].shape[1]
        whole = scaled(lambda **c: kernel(ard_num_dims=num_inputs, **c), numbers)
        half_width = torch.as_tensor(numbers["L"])
        features = HilbertAdditiveFeatures(whole, Box(torch.zeros_like(half_width), half_width), 5)
        return features, whole.base_kernel.raw_lengthscale, whole.raw_outputscale

    return build


BUILD = {
    "rbf": radial,
    "rff_se": fourier,
    "hsgp_se": hilbert(RBFKernel),
    "hsgp_matern32": hilbert(lambda **c: MaternKernel(nu=1.5, **c)),
}


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("place", [("golden",), ("shared", "golden", "doebe")], ids=["synthetic", "elevators"])
def test_golden(place, name, request):
    folder = request.getfixturevalue(place[0]).joinpath(*place[1:])
    numbers = np.load(folder / f"expert_{name}.npz")
    data = np.load(next(folder.glob("data_*.npz")))
    X, y = torch.as_tensor(data["X"])[:300], torch.as_tensor(data["y"])[:300]
    features, raw_lengthscale, raw_prior = BUILD[name](numbers, data)
    Phi = features(X)
    gram = torch.as_tensor(numbers["phi"])[:300]
    torch.testing.assert_close(Phi @ Phi.mT, gram @ gram.mT, rtol=1e-8, atol=1e-9)
    log_noise = torch.as_tensor(numbers["var_eps"]).log().requires_grad_()
    value = -log_evidence(Phi, y, features.prior_variance, log_noise.exp())
    np.testing.assert_allclose(value.detach(), numbers["mnll_exact_300"], rtol=1e-9)
    got = torch.autograd.grad(value, (raw_lengthscale, raw_prior, log_noise))
    for gradient, key in zip(got, ("log_lengthscale", "log_var_theta", "log_var_eps"), strict=True):
        want = numbers[f"grad_mnll_exact_300_{key}"]
        np.testing.assert_allclose(gradient.squeeze(), want, rtol=1e-7, atol=1e-7)
