"""Log joint densities of the fusion models: golden values and gradients, brute force, symmetries, bad input."""

import math
from itertools import product

import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal

from gp_ensembles.papers.fusion.experts import ExpertPredictions
from gp_ensembles.papers.fusion.function_priors import FourierPrior
from gp_ensembles.papers.fusion.models import BHS, PBHS, HetGP, MoGPE, PoGPE
from tests.papers.fusion.cases import inputs, made_up_experts, spoil, without_noise

# Names of the golden blocks.
BLOCKS = {"mean": "mu", "log_scale": "ls", "weights": "w"}
KINDS = ["mogpe", "pogpe", "bhs", "pbhs", "het"]


@pytest.fixture
def joints(archive):
    return archive("fusion_log_joints")


def golden_model(name, joints, prior_stddev=None):
    """A model of the golden data."""
    X, y = joints["x"].unsqueeze(-1), joints["y"]
    mean, scale, weights = (
        FourierPrior(
            joints[f"omega_{kind}"].unsqueeze(-1),
            joints[f"ell_{kind}"],
            joints[f"amp_{kind}"],
            prior_stddev=prior_stddev,
        )
        for kind in ("mu", "sigma", "w")
    )
    predictions = without_noise(joints["fixed_mu"].mT, (2 * joints["fixed_log_sigma"].mT).exp())
    if name == "het":
        return HetGP(X, y, mean, scale)
    if name in ("mogpe", "pogpe"):
        return (MoGPE if name == "mogpe" else PoGPE)(X, y, 3, mean, scale, weights)
    return (BHS if name == "bhs" else PBHS)(X, y, predictions, weights)


def golden_theta(model, name, joints, what="z"):
    return {block: joints[f"{name}_{what}_{BLOCKS[block]}"].mT for block in model.blocks if block in BLOCKS}


def models(num_experts=3, prior_stddev=None, dtype=torch.float64):
    """One model of each kind on data of two columns."""
    X, y = inputs(7, 2).to(dtype), inputs(7, seed=9).squeeze(-1).to(dtype)
    prior = FourierPrior((inputs(3, 2, seed=1) * 3).to(dtype), 0.5, 1.3, prior_stddev=prior_stddev)
    predictions = ExpertPredictions(*(part.to(dtype) for part in made_up_experts(num_experts, 7)))
    return {
        "MoGPE": MoGPE(X, y, num_experts, prior, prior, prior),
        "PoGPE": PoGPE(X, y, num_experts, prior, prior, prior),
        "BHS": BHS(X, y, predictions, prior),
        "PBHS": PBHS(X, y, predictions, prior),
        "HetGP": HetGP(X, y, prior, prior),
    }


@pytest.mark.parametrize("name", KINDS)
def test_golden_log_joints_and_gradients(name, joints):
    model = golden_model(name, joints)
    theta = model.pack(golden_theta(model, name, joints)).requires_grad_()
    torch.testing.assert_close(model.log_likelihood(theta), joints[f"{name}_pointwise_loglik"], rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(model.log_prior(theta), joints[f"{name}_log_prior_whitened"], rtol=1e-12, atol=0)
    log_joint = model.log_joint(theta)
    torch.testing.assert_close(log_joint, joints[f"{name}_log_joint_whitened"], rtol=1e-11, atol=0)
    (gradient,) = torch.autograd.grad(log_joint, theta)
    expected = model.pack(golden_theta(model, name, joints, "grad"))
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["mogpe", "pogpe"])
def test_golden_log_joints_with_sampled_hyperparameters(name, joints):
    model = golden_model(name, joints, prior_stddev=0.5)
    logs = joints[f"{name}_hyper_values"]
    blocks = golden_theta(model, name, joints)
    for index, block in enumerate(BLOCKS):
        blocks[f"{block}_hyperparameters"] = logs[2 * index : 2 * index + 2]
    theta = model.pack(blocks).requires_grad_()
    log_joint = model.log_joint(theta)
    torch.testing.assert_close(log_joint, joints[f"{name}_hyper_log_joint"], rtol=1e-11, atol=0)
    gradient = model.unpack(torch.autograd.grad(log_joint, theta)[0])
    found = torch.cat([gradient[f"{block}_hyperparameters"] for block in BLOCKS])
    torch.testing.assert_close(found, joints[f"{name}_hyper_grad"], rtol=1e-9, atol=1e-10)


def reference(model, theta):
    """Log likelihoods from torch's distributions, one vector of parameters."""
    values = model.values(theta)
    if isinstance(model, BHS | PBHS):
        predictions = made_up_experts(model.num_experts, 7)
        mean, scale = predictions.mean, predictions.target_variance.sqrt()
    else:
        mean, scale = values["mean"], values["log_scale"].exp()
    if isinstance(model, HetGP):
        return Normal(mean[0], scale[0]).log_prob(model.y)
    if isinstance(model, BHS | MoGPE):
        logits = torch.zeros_like(mean)
        if "weights" in values:
            logits[:-1] = values["weights"]
        return MixtureSameFamily(Categorical(logits=logits.mT), Normal(mean.mT, scale.mT)).log_prob(model.y)
    weights = values["weights"].exp() / model.num_experts
    precision = (weights / scale**2).sum(0)
    return Normal((weights / scale**2 * mean).sum(0) / precision, precision.rsqrt()).log_prob(model.y)


def test_densities_are_those_of_torch_distributions(generator):
    """Against a re-implementation; many vectors of parameters at once are those vectors one by one."""
    for prior_stddev, num_experts in product((None, 0.3), (1, 2, 4)):
        for model in models(num_experts, prior_stddev).values():
            theta = model.draw_prior(6, generator=generator).reshape(2, 3, -1)
            log_likelihood, log_prior = model.log_likelihood(theta), model.log_prior(theta)
            assert log_likelihood.shape == (2, 3, 7)
            expected = Normal(model.prior_mean, model.prior_stddev).log_prob(theta).sum(-1)
            torch.testing.assert_close(log_prior, expected, rtol=1e-12, atol=1e-12)
            log_joint = log_prior + log_likelihood.sum(-1)
            torch.testing.assert_close(model.log_joint(theta), log_joint, rtol=1e-12, atol=1e-12)
            for place in ((0, 0), (1, 2)):
                expected = reference(model, theta[place])
                torch.testing.assert_close(log_likelihood[place], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", models())
def test_gradient_of_the_sum_is_every_chains_own(name, generator):
    """What a sampler relies on, and second derivatives for Laplace's approximation."""
    model = models(2, 0.3)[name]
    theta = model.draw_prior(3, generator=generator).requires_grad_()
    (together,) = torch.autograd.grad(model.log_joint(theta).sum(), theta)
    for chain in range(3):
        one = theta[chain].detach().requires_grad_()
        (alone,) = torch.autograd.grad(model.log_joint(one), one)
        torch.testing.assert_close(together[chain], alone, rtol=1e-9, atol=1e-9)
    assert torch.autograd.gradcheck(model.log_joint, (theta[0].detach().requires_grad_(),))
    hessian = torch.autograd.functional.hessian(model.log_joint, theta[0].detach())
    step = 1e-6 * torch.ones_like(one)
    fine = [(theta[0] + sign * step).detach().requires_grad_() for sign in (1, -1)]
    slopes = [torch.autograd.grad(model.log_joint(point), point)[0] for point in fine]
    torch.testing.assert_close(hessian @ step, (slopes[0] - slopes[1]) / 2, rtol=1e-4, atol=1e-8)


def test_prior_draws_have_the_prior_moments(generator):
    model = models(2, 0.3)["PBHS"]
    theta = model.draw_prior(4000, generator=generator)
    standard = (theta - model.prior_mean) / model.prior_stddev
    assert float(standard.mean(0).abs().max()) < 5 / math.sqrt(4000)
    assert float((standard.var(0) - 1).abs().max()) < 5 * math.sqrt(2 / 4000)
    torch.testing.assert_close(model.prior_mean[-2:].exp(), model.y.new_tensor([0.5, 1.3]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["PBHS", "PoGPE"])
def test_prior_weights_have_median_and_mean_as_said(name, generator):
    """Median 1 / K; mean exp(a^2 / 2) / K, not the 1 / K that the paper says."""
    model, X = models(4)[name], inputs(2, 2, seed=6)
    weights = model.log_weights(model.draw_prior(20000, generator=generator), X).exp()
    amplitude = 1.3
    error = 4 * 0.5 * math.sqrt(2 * math.pi) * amplitude / math.sqrt(20000)  # of the median of a log-normal
    assert float((weights.median(0).values.log() + math.log(4)).abs().max()) < error
    spread = math.sqrt(math.expm1(amplitude**2)) / math.sqrt(20000)
    assert float((weights.mean(0) * 4 / math.exp(amplitude**2 / 2) - 1).abs().max()) < 5 * spread


def test_extreme_parameters_lose_no_digit():
    """A pool of a tiny and a huge scale, by exact arithmetic on logarithms."""
    X, y = torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    prior = FourierPrior(torch.ones_like(X))
    product, mixture = PoGPE(X, y, 2, prior, prior, prior), MoGPE(X, y, 2, prior, prior, prior)
    blocks = {name: X.new_zeros(2, 2) for name in BLOCKS}
    blocks["log_scale"][:, 0] = X.new_tensor([-300.0, 20.0])  # the cosine at zero is one
    found = product.log_likelihood(product.pack(blocks))
    torch.testing.assert_close(found, y + 300 - 0.5 * math.log(2) - 0.5 * math.log(2 * math.pi), rtol=1e-14, atol=0)
    blocks["weights"] = X.new_tensor([[-800.0, 0.0]])
    found = mixture.log_likelihood(mixture.pack(blocks))
    torch.testing.assert_close(found, y - 20 - 0.5 * math.log(2 * math.pi), rtol=1e-14, atol=0)


def refusals():
    X, y, prior = inputs(5), inputs(5, seed=2).squeeze(-1), FourierPrior(torch.ones(2, 1, dtype=torch.float64))
    good, endless = made_up_experts(2, 5), spoil(y, 3, math.inf)
    zero = good._replace(variance=spoil(good.variance, (1, 2), 0.0))
    model = BHS(X, y, good, prior)
    joint = HetGP(X, y, prior, prior)
    return [
        (lambda: HetGP(X, y[:4], prior, prior), ValueError, "do not fit"),
        (lambda: HetGP(X, endless, prior, prior), ValueError, r"targets must be finite, but targets\[3, 0\]"),
        (lambda: HetGP(X.float(), y.float(), prior, prior), TypeError, "same dtype and device"),
        (lambda: HetGP(torch.cat([X, X], -1), y, prior, prior), ValueError, r"1 column\(s\)"),
        (lambda: MoGPE(X, y, 0, prior, prior, prior), ValueError, "num_experts must be at least 1"),
        (lambda: BHS(X, y, zero, prior), ValueError, "expert 1 has 0 at row 2"),
        (lambda: PBHS(X, y, made_up_experts(2, 4), prior), ValueError, r"\(K, 5\)"),
        (lambda: PBHS(X, y, ExpertPredictions(*(part.float() for part in good)), prior), ValueError, "torch.float64"),
        (lambda: model.log_joint(X.new_zeros(3)), ValueError, "4 parameters"),
        (lambda: model.log_likelihood(X.new_zeros(())), ValueError, "4 parameters"),
        (lambda: model.pack({"mean": X}), ValueError, "weights"),
        (lambda: model.predictive(X.new_zeros(2, 4), X), ValueError, "predict_experts"),
        (lambda: model.predictive(X.new_zeros(2, 4), X, made_up_experts(1, 5)), ValueError, r"\(2, 5\)"),
        (lambda: joint.predictive(X.new_zeros(2, 8), X, good), ValueError, "learns its experts"),
        (lambda: joint.predictive(X.new_zeros(0, 8), X), ValueError, "S at least 1"),
        (lambda: joint.predictive(X.new_zeros(8), X), ValueError, r"\(S, P\)"),
        (lambda: joint.predictive(X.new_zeros(2, 8), X, draw_log_weights=y), ValueError, "2 draws need"),
        (lambda: joint.predictive(X.new_zeros(2, 8), X[:, :0]), ValueError, "as in training"),
        (lambda: joint.predictive(X.new_zeros(2, 8), endless.unsqueeze(-1)), ValueError, r"inputs\[3, 0\] is inf"),
    ]  # fmt: skip


def test_bad_input_is_refused_clearly():
    for call, error, message in refusals():
        with pytest.raises(error, match=message):
            call()
