"""Laplace's method through knots, against reference numbers, dense algebra, exact cases and finite differences."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.optim import optimize_acqf
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, SoftmaxLikelihood, StudentTLikelihood
from gpytorch.means import LinearMean
from gpytorch.priors import GammaPrior
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_operator.utils.warnings import NumericalWarning
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from torch import Tensor

from gp_ensembles.likelihoods import LogisticLikelihood, LogPoissonLikelihood
from gp_ensembles.likelihoods.response import log_prob
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.derivatives import scalar_derivatives
from gp_ensembles.sparse import (
    FITC,
    BayesianOptimization,
    GreedyBlocks,
    OneAtATime,
    RandomSubset,
    Reinitialization,
    Simultaneous,
    SparseGP,
    fit_sparse,
    greedy_variance_knots,
    select_laplace_knots,
)
from gp_ensembles.sparse.collapsed import LatentPrior, log_density, project
from gp_ensembles.sparse.laplace import (
    SparseLaplaceGP,
    find_mode,
    knots_posterior,
    laplace_evidence,
)
from gp_ensembles.sparse.one_at_a_time import candidate_objectives
from gp_ensembles.sparse.optimizers import LBFGSB

LIKELIHOODS = {"poisson": LogPoissonLikelihood, "bernoulli": LogisticLikelihood, "probit": BernoulliLikelihood}


def tensor(values) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=float))


def density(likelihood):
    return lambda latent, y: log_prob(likelihood, latent, y)


def squared_exponential(first: Tensor, second: Tensor, scale: Tensor, lengthscale: Tensor) -> Tensor:
    squares = ((first.unsqueeze(-2) - second.unsqueeze(-3)) / lengthscale).square().sum(-1)
    return scale.square() * torch.exp(-0.5 * squares)


def projection_at(X: Tensor, Z: Tensor, log_scales: Tensor, delta: float):
    """The projection of the reference: scale, lengthscale and latent noise by their logarithms."""
    scale, lengthscale, deviation = log_scales.exp()
    extra = deviation.square() + delta
    own = squared_exponential(Z, Z, scale, lengthscale) + extra * torch.diag_embed(torch.ones_like(Z[:, 0]))
    prior = (scale.square() + extra).expand(X.shape[0])
    return project(own, squared_exponential(Z, X, scale, lengthscale), prior, torch.zeros_like(X[:, 0]), extra)


@pytest.fixture(params=["poisson", "bernoulli"])
def case(request, golden):
    """Name, likelihood and numbers of the corrected reference."""
    numbers = {name: tensor(values) for name, values in np.load(golden / "knots_laplace_fic.npz").items()}
    return request.param, LIKELIHOODS[request.param](), numbers


def latent_prior(projection, mean: Tensor) -> LatentPrior:
    return LatentPrior(mean, projection.projected, projection.unexplained)


def random_case(name: str, seed: int = 0, rows: int = 40, knots: int = 6):
    """Inputs, targets and knots made up for a likelihood."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(rows, 2, generator=generator, dtype=torch.float64)
    latent = 2.0 * torch.sin(5.0 * X[:, 0]) + X[:, 1]
    if name == "poisson":
        y = torch.poisson(latent.exp(), generator=generator)
    else:
        y = torch.bernoulli(torch.sigmoid(2.0 * latent - 1.0), generator=generator)
    return X, y, X[:knots] + 0.01


def make_model(name: str = "poisson", **arguments) -> SparseLaplaceGP:
    X, y, Z = random_case(name)
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2)).double()
    kernel.base_kernel.lengthscale = torch.tensor([[0.4, 0.7]])
    return SparseLaplaceGP(X, y, Z, kernel, LIKELIHOODS[name](), noise=0.05, **arguments)


class TestReference:
    def test_evidence_mode_and_gradient(self, case):
        name, likelihood, numbers = case
        log_scales = torch.stack([numbers[key].reshape(()) for key in ("sigma", "lengthscale", "tau")]).log()
        log_scales.requires_grad_()
        y = numbers[f"{name}_y"]
        prior = latent_prior(
            projection_at(numbers["X"], numbers["Z"], log_scales, float(numbers["delta"])),
            numbers[f"{name}_mean"].expand_as(y),
        )
        mode = find_mode(prior, density(likelihood), y)
        evidence = laplace_evidence(prior, density(likelihood), y, mode)
        evidence.backward()
        torch.testing.assert_close(evidence.detach(), numbers[f"{name}_logq"], rtol=0, atol=1e-8)
        torch.testing.assert_close(mode.latent, numbers[f"{name}_mode"], rtol=0, atol=1e-8)
        torch.testing.assert_close(log_scales.grad, numbers[f"{name}_grad_logtheta"], rtol=0, atol=1e-7)
        assert mode.num_iterations <= 10

    def test_knots(self, case):
        name, likelihood, numbers = case
        log_scales = torch.stack([numbers[key].reshape(()) for key in ("sigma", "lengthscale", "tau")]).log()
        y, mean = numbers[f"{name}_y"], numbers[f"{name}_mean"]
        projection = projection_at(numbers["X"], numbers["Z"], log_scales, float(numbers["delta"]))
        prior = latent_prior(projection, mean.expand_as(y))
        mode = find_mode(prior, density(likelihood), y)
        posterior = knots_posterior(projection.lower, prior, density(likelihood), y, mode)
        knots_mean = mean + projection.lower @ (prior.projected @ mode.weights)
        root = torch.linalg.solve_triangular(posterior.factor, projection.lower.mT, upper=False)
        torch.testing.assert_close(knots_mean, numbers[f"{name}_u_mean"], rtol=0, atol=1e-8)
        torch.testing.assert_close(root.mT @ root, numbers[f"{name}_u_cov"], rtol=0, atol=1e-8)

    def test_the_model_predicts_it(self, case):
        name, likelihood, numbers = case
        kernel = ScaleKernel(RBFKernel()).double()
        kernel.outputscale = numbers["sigma"].square()
        kernel.base_kernel.lengthscale = numbers["lengthscale"]
        nugget = float(numbers["delta"] / numbers["sigma"].square())
        noise = float(numbers["tau"].square())
        model = SparseLaplaceGP(
            numbers["X"], numbers[f"{name}_y"], numbers["Z"], kernel, likelihood, noise=noise, nugget=nugget
        )
        model.mean_module.constant.data.fill_(float(numbers[f"{name}_mean"]))
        posterior = model.posterior(numbers["Xtest"], observation_noise=True)
        torch.testing.assert_close(model.objective(), numbers[f"{name}_logq"], rtol=0, atol=1e-8)
        torch.testing.assert_close(posterior.mean.squeeze(-1), numbers[f"{name}_pred_mean"], rtol=0, atol=1e-8)
        torch.testing.assert_close(posterior.variance.squeeze(-1), numbers[f"{name}_pred_var"], rtol=0, atol=1e-8)


class TestAlgebra:
    @pytest.mark.parametrize("name", LIKELIHOODS)
    def test_dense(self, name):
        """Everything once more with N x N matrices, at the mode that was found."""
        X, y, Z = random_case(name)
        log_scales = torch.tensor([0.3, -0.5, -1.0], dtype=torch.float64)
        projection = projection_at(X, Z, log_scales, 1e-4)
        prior = latent_prior(projection, torch.full_like(y, 0.3))
        likelihood = density(LIKELIHOODS[name]())
        mode = find_mode(prior, likelihood, y)
        S = prior.projected.mT @ prior.projected + torch.diag(prior.unexplained)
        change = mode.latent - prior.mean
        derivatives = scalar_derivatives(likelihood, mode.latent, y)
        torch.testing.assert_close(torch.linalg.solve(S, change), derivatives.first, rtol=1e-8, atol=1e-8)
        W = -derivatives.second
        B = torch.diag(torch.ones_like(y)) + W.sqrt().outer(W.sqrt()) * S
        evidence = likelihood(mode.latent, y).sum() - 0.5 * change @ torch.linalg.solve(S, change)
        evidence = evidence - 0.5 * torch.logdet(B)
        torch.testing.assert_close(laplace_evidence(prior, likelihood, y, mode), evidence, rtol=1e-10, atol=1e-10)
        M = torch.diag(torch.ones_like(Z[:, 0])) - prior.projected @ torch.linalg.solve(
            S + torch.diag(1 / W), prior.projected.mT
        )
        posterior = knots_posterior(projection.lower, prior, likelihood, y, mode)
        torch.testing.assert_close(torch.cholesky_inverse(posterior.factor), M, rtol=1e-9, atol=1e-9)

    def test_joint_predictions_are_dense_algebra(self):
        model = make_model("bernoulli")
        X, Xs, Z = model.train_X, torch.rand(5, 2, dtype=torch.float64), model.knots.detach()
        with torch.no_grad():
            k = model.covar_module
            extra = model.nugget * model.covar_module.outputscale + model.noise
            own = k(Z, Z).to_dense() + extra * torch.diag(torch.ones_like(Z[:, 0]))
            Kuf, Kus = k(Z, X).to_dense(), k(Z, Xs).to_dense()
            Q, Qs = (a.mT @ torch.linalg.solve(own, Kuf) for a in (Kuf, Kus))
            S = Q + torch.diag(model.covar_module.outputscale + extra - Q.diagonal())
            mode = model.mode()
            p = torch.sigmoid(mode.latent)
            inner = torch.linalg.inv(S + torch.diag(1 / (p * (1 - p))))
            posterior = model.posterior(Xs)
            torch.testing.assert_close(posterior.mean.squeeze(-1), Qs @ torch.linalg.solve(S, mode.latent))
            expected = k(Xs, Xs).to_dense() - Qs @ inner @ Qs.mT
            torch.testing.assert_close(posterior.distribution.covariance_matrix, expected)

    def test_normal_noise_is_exact(self):
        """Laplace's method is exact where the posterior is normal: FITC's evidence and predictions."""
        X, y, Z = random_case("poisson")
        likelihood = GaussianLikelihood().double()
        likelihood.noise = 0.3
        log_scales = torch.tensor([0.3, -0.5, -2.0], dtype=torch.float64)
        projection = projection_at(X, Z, log_scales, 1e-4)._replace(residual=y - 1.0)
        prior = latent_prior(projection, torch.ones_like(y))
        mode = find_mode(prior, density(likelihood), y)
        evidence = laplace_evidence(prior, density(likelihood), y, mode)
        torch.testing.assert_close(evidence, log_density(projection, projection.unexplained + likelihood.noise))
        assert mode.num_iterations == 3  # one there, one that sees it, one that polishes

    def test_normal_noise_predicts_as_the_sparse_model(self):
        X, y, Z = random_case("poisson")
        kernel, likelihood = ScaleKernel(RBFKernel()).double(), GaussianLikelihood().double()
        laplace = SparseLaplaceGP(X, y, Z, deepcopy(kernel), deepcopy(likelihood), noise=1e-12)
        normal = SparseGP(X, y, Z, kernel, likelihood, approximation=FITC())
        normal.mean_module.constant.data.fill_(0.0)
        torch.testing.assert_close(laplace.objective(), normal.objective(), rtol=1e-8, atol=1e-8)
        with torch.no_grad():
            first, second = (model.posterior(X[:4] + 0.1).distribution for model in (laplace, normal))
        torch.testing.assert_close(first.mean, second.mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(first.covariance_matrix, second.covariance_matrix, rtol=1e-6, atol=1e-6)

    def test_knots_on_all_data_are_the_full_process(self):
        """Scikit-learn's classifier is Laplace's method with the logistic link and no knots."""
        generator = torch.Generator().manual_seed(3)
        X = torch.rand(25, 2, generator=generator, dtype=torch.float64) * 4
        y = (torch.sin(2 * X[:, 0]) + 0.3 * X[:, 1] > 0.5).double()
        kernel = RBFKernel().double()
        kernel.lengthscale = 0.5
        model = SparseLaplaceGP(X, y, X, kernel, LogisticLikelihood(), noise=1e-10, nugget=1e-10)
        full = GaussianProcessClassifier(RBF(0.5), optimizer=None, max_iter_predict=1000).fit(X.numpy(), y.numpy())
        exact = full.log_marginal_likelihood(full.kernel_.theta)
        assert float(model.objective().detach()) == pytest.approx(exact, abs=1e-6)


class TestGradients:
    @pytest.mark.parametrize("name", LIKELIHOODS)
    def test_scales_knots_means_and_offsets(self, name):
        X, y, Z = random_case(name, rows=15, knots=3)
        likelihood = density(LIKELIHOODS[name]())

        def evidence(log_scales: Tensor, Z: Tensor, mean: Tensor, offset: Tensor) -> Tensor:
            shifted = lambda latent, y: likelihood(latent + offset, y)  # noqa: E731
            prior = latent_prior(projection_at(X, Z, log_scales, 1e-4), mean)
            return laplace_evidence(prior, shifted, y, find_mode(prior, shifted, y))

        log_scales = torch.tensor([0.3, -0.8, -1.0], dtype=torch.float64)
        point = (log_scales, Z, torch.full_like(y, 0.2), torch.linspace(0, 0.5, 15, dtype=torch.float64))
        assert torch.autograd.gradcheck(evidence, tuple(part.requires_grad_() for part in point))

    @pytest.mark.parametrize("name", LIKELIHOODS)
    def test_every_parameter_of_a_model(self, name):
        model = make_model(name, mean=LinearMean(2).double())
        model.objective().backward()
        for label, parameter in model.named_parameters():
            direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            ends = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    parameter += step * direction
                    ends.append(float(model.objective().detach()))
                    parameter -= step * direction
            slope = (ends[0] - ends[1]) / 2e-5
            assert float((parameter.grad * direction).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-7), label

    def test_parameters_of_the_likelihood(self):
        X, y, Z = random_case("poisson")
        likelihood = GaussianLikelihood()
        model = SparseLaplaceGP(X, y, Z, RBFKernel(), likelihood)
        raw_noise = likelihood.noise_covar.raw_noise
        slope = torch.autograd.grad(model.objective(), raw_noise)[0]
        with torch.no_grad():
            raw_noise += 1e-5
            up = float(model.objective().detach())
            raw_noise -= 2e-5
            down = float(model.objective().detach())
        assert float(slope) == pytest.approx((up - down) / 2e-5, rel=1e-6)

    @given(st.sampled_from(sorted(LIKELIHOODS)), st.integers(0, 10**6), st.floats(-2, 2), st.floats(-2, 1))
    @settings(max_examples=25)
    def test_the_mode_is_the_maximum(self, name, seed, log_scale, log_lengthscale):
        X, y, Z = random_case(name, seed, rows=12, knots=4)
        log_scales = torch.tensor([log_scale, log_lengthscale, -2.0], dtype=torch.float64)
        prior = latent_prior(projection_at(X, Z, log_scales, 1e-6), torch.zeros_like(y))
        likelihood = density(LIKELIHOODS[name]())
        mode = find_mode(prior, likelihood, y)
        derivatives = scalar_derivatives(likelihood, mode.latent, y)
        torch.testing.assert_close(derivatives.first, mode.weights, rtol=1e-7, atol=1e-7)
        other = mode.weights + 0.1 * torch.randn(12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        change = prior.covary(other)
        assert float(likelihood(change, y).sum() - 0.5 * other @ change) <= float(mode.log_joint) + 1e-9


class TestNewton:
    @pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
    def test_counts_far_from_the_mean_need_damping(self, scale):
        X, _, Z = random_case("poisson")
        y = torch.linspace(0, 1e6, 40, dtype=torch.float64).round()
        log_scales = torch.tensor([np.log(scale), -1.0, -1.0], dtype=torch.float64)
        prior = latent_prior(projection_at(X, Z, log_scales, 1e-6), torch.zeros_like(y))
        mode = find_mode(prior, density(LogPoissonLikelihood()), y)
        slope = y - mode.latent.exp() - mode.weights
        assert float(slope.abs().max()) < 1e-6 * float(y.max())

    def test_a_warm_start_saves_steps(self):
        model = make_model()
        scale, lengthscale = model.covar_module.outputscale.sqrt(), model.covar_module.base_kernel.lengthscale
        own, cross = (
            squared_exponential(model.knots, other, scale, lengthscale.squeeze(0))
            for other in (model.knots, model.train_X)
        )
        own = own + model.noise * torch.diag_embed(torch.ones_like(own[0]))
        variance = (scale.square() + model.noise).expand(len(model.train_y))
        projection = project(own, cross, variance, torch.zeros_like(model.train_y), model.noise)
        prior = latent_prior(projection, model.mean_module(model.train_X))
        prior = LatentPrior(*(part.detach() for part in prior))
        likelihood = density(LogPoissonLikelihood())
        cold = find_mode(prior, likelihood, model.train_y)
        warm = find_mode(prior, likelihood, model.train_y, start=cold.weights)
        assert warm.num_iterations <= 2 < cold.num_iterations
        torch.testing.assert_close(warm.latent, cold.latent, rtol=1e-10, atol=1e-10)

    def test_a_bad_start_is_not_taken(self):
        """Weights of a function that cannot move, given to one that would explode with them."""
        cold, warm = make_model(), make_model()
        for model in (cold, warm):
            model.covar_module.outputscale = 1000.0
        parameters = [warm.mean_module.constant, warm.covar_module.raw_outputscale, warm.raw_noise]
        before = [parameter.detach().clone() for parameter in parameters]
        for parameter, value in zip(parameters, (-30.0, -20.0, -20.0), strict=True):
            parameter.data.fill_(value)
        torch.testing.assert_close(warm.mode().weights, warm.train_y, rtol=0, atol=1e-4)  # the next search has them
        for parameter, value in zip(parameters, before, strict=True):
            parameter.data.copy_(value)
        expected = cold.objective().detach()
        torch.testing.assert_close(warm.objective().detach(), expected, rtol=1e-10, atol=1e-10)

    def test_a_target_far_out_says_nothing(self):
        """Curvatures that vanish are no division by zero, forward or backward."""
        X, y, Z = random_case("bernoulli")
        mean = torch.full_like(y, 900.0).requires_grad_()
        prior = latent_prior(projection_at(X, Z, torch.zeros(3, dtype=torch.float64), 1e-4), mean)
        likelihood, ones = density(LogisticLikelihood()), torch.ones_like(y)
        mode = find_mode(prior, likelihood, ones)
        evidence = laplace_evidence(prior, likelihood, ones, mode)
        evidence.backward()
        assert float(evidence.detach()) == pytest.approx(0.0, abs=1e-12)
        assert bool(mean.grad.isfinite().all())

    def test_single_precision(self):
        X, y, Z = random_case("poisson")
        single = SparseLaplaceGP(X.float(), y.float(), Z.float(), RBFKernel(), LogPoissonLikelihood())
        double = SparseLaplaceGP(X, y, Z, RBFKernel(), LogPoissonLikelihood())
        assert float(single.objective().detach()) == pytest.approx(float(double.objective().detach()), rel=1e-3)

    def test_errors(self):
        X, y, Z = random_case("poisson")
        prior = latent_prior(projection_at(X, Z, torch.ones(3, dtype=torch.float64), 1e-4), torch.zeros_like(y))
        with pytest.raises(NumericalError, match=r"row \d+ is not concave"):
            find_mode(prior, density(StudentTLikelihood().double()), y)
        with pytest.raises(NumericalError, match="was not found in 1 Newton steps"):
            find_mode(prior, density(LogPoissonLikelihood()), y, max_iterations=1)
        with pytest.raises(NumericalError, match="not finite at the prior mean"):
            find_mode(prior._replace(mean=torch.full_like(y, 1e3)), density(LogPoissonLikelihood()), y)


class TestModel:
    def test_exposures_shift_the_mean(self):
        X, y, Z = random_case("poisson")
        plain = SparseLaplaceGP(X, y, Z, RBFKernel(), LogPoissonLikelihood())
        exposed = SparseLaplaceGP(X, y, Z, RBFKernel(), LogPoissonLikelihood(), offset=torch.full_like(y, 2.0).log())
        exposed.mean_module.constant.data.fill_(-np.log(2.0))
        torch.testing.assert_close(plain.objective(), exposed.objective())
        with torch.no_grad():
            doubled, once = exposed.posterior(X[:3]).mean + np.log(2.0), plain.posterior(X[:3]).mean
        torch.testing.assert_close(doubled, once)

    @pytest.mark.parametrize("name", LIKELIHOODS)
    def test_a_fit_gains_and_moves_what_it_may(self, name):
        model = make_model(name)
        before, knots = float(model.objective().detach()), model.knots.detach().clone()
        first = fit_sparse(model, max_iterations=10)
        assert first.objective > before
        assert torch.equal(model.knots.detach(), knots)
        second = fit_sparse(model, knots=True, max_iterations=10)
        assert second.objective > first.objective
        assert not torch.equal(model.knots.detach(), knots)
        assert float(model.objective().detach()) == pytest.approx(second.objective, abs=1e-8)

    def test_any_kernel(self):
        X, y, Z = random_case("poisson")
        kernel = ScaleKernel(MaternKernel(1.5, ard_num_dims=2) * PeriodicKernel())
        assert fit_sparse(SparseLaplaceGP(X, y, Z, kernel, LogPoissonLikelihood()), max_iterations=5).objective < 0

    def test_hyperpriors_count(self):
        model = make_model()
        before = model.objective()
        prior = GammaPrior(3.0, 6.0).double()
        model.covar_module.register_prior("scale_prior", prior, "outputscale")
        torch.testing.assert_close(model.objective() - before, prior.log_prob(model.covar_module.outputscale))

    def test_predictions_follow_parameters(self):
        model = make_model()
        X = model.train_X[:3]
        before = model.posterior(X).mean
        model.covar_module.outputscale = 3.0
        after = model.posterior(X).mean
        assert not torch.allclose(before, after)
        other = make_model()
        other.load_state_dict(model.state_dict())
        torch.testing.assert_close(other.posterior(X).mean, after, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(deepcopy(model).posterior(X).mean, after, rtol=1e-9, atol=1e-9)

    def test_batches_and_gradients_of_inputs(self):
        model = make_model("bernoulli")
        X = torch.rand(4, 3, 2, dtype=torch.float64, requires_grad=True)
        posterior = model.posterior(X)
        assert posterior.mean.shape == (4, 3, 1)
        torch.testing.assert_close(posterior.mean[2], model.posterior(X[2]).mean)
        slope = torch.autograd.grad(posterior.variance.sum(), X)[0]
        assert bool(slope.isfinite().all())
        assert bool(slope.any())
        assert posterior.rsample(torch.Size([2])).shape == (2, 4, 3, 1)

    def test_many_points_close_to_one_another(self):
        """A covariance that is singular to rounding is no obstacle to means, variances and samples."""
        X = torch.rand(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        posterior = make_model().posterior(X)
        assert bool((posterior.variance > 0).all())
        with pytest.warns(NumericalWarning, match="added jitter"):
            assert posterior.rsample(torch.Size([2])).shape == (2, 300, 1)

    def test_acquisition_by_botorch(self):
        """The most probable label is sought, and found where labels are ones."""
        model = make_model("bernoulli")
        bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        acquisition = UpperConfidenceBound(model, beta=0.0)
        _, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=2, raw_samples=16)
        assert float(value) >= float(model.posterior(model.train_X).mean.detach().max()) - 1e-6

    def test_noise_is_added_on_demand(self):
        model = make_model()
        X = model.train_X[:2]
        plain, given = model.posterior(X).variance, torch.full((2, 1), 0.5, dtype=torch.float64)
        torch.testing.assert_close(model.posterior(X, observation_noise=True).variance, plain + model.noise)
        torch.testing.assert_close(model.posterior(X, observation_noise=given).variance, plain + 0.5)

    def test_more_rows_are_as_if_all_had_been_given(self):
        model = make_model()
        X, y, Z = random_case("poisson")
        half = SparseLaplaceGP(X[:20], y[:20], Z, deepcopy(model.covar_module), LogPoissonLikelihood(), noise=0.05)
        more = half.condition_on_observations(X[20:], y[20:, None])
        torch.testing.assert_close(more.objective(), model.objective(), rtol=1e-10, atol=1e-10)
        assert half.train_X.shape[0] == 20
        shifted = half.condition_on_observations(X[20:], y[20:, None], offset=torch.ones_like(y[20:]))
        assert not torch.allclose(shifted.objective(), more.objective())
        with pytest.raises(ValueError, match="unknown settings"):
            half.condition_on_observations(X[20:], y[20:, None], weight=1.0)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"train_Y": -torch.ones(40, dtype=torch.float64)}, "target -1 in row 0 is not possible"),
            ({"train_Y": torch.full((40,), torch.nan, dtype=torch.float64)}, "targets must be finite, but row 0"),
            ({"train_Y": torch.ones(3, dtype=torch.float64)}, "do not fit"),
            ({"knots": torch.rand(41, 2, dtype=torch.float64)}, "more than the 40 distinct"),
            ({"likelihood": SoftmaxLikelihood(num_features=2, num_classes=2)}, "latent vectors"),
            ({"noise": 0.0}, "latent noise must be positive"),
            ({"offset": torch.ones(3, dtype=torch.float64)}, "one value for each of 40 rows"),
            ({"offset": torch.zeros(40, dtype=torch.float64).log()}, "row 0 is -inf; exposures must be positive"),
        ],
    )
    def test_bad_arguments(self, change, message):
        X, y, Z = random_case("poisson")
        arguments = {
            "train_X": X,
            "train_Y": y,
            "knots": Z,
            "kernel": RBFKernel(),
            "likelihood": LogPoissonLikelihood(),
        }
        with pytest.raises(ValueError, match=message):
            SparseLaplaceGP(**(arguments | change))

    def test_bad_questions(self):
        model = make_model()
        with pytest.raises(BotorchTensorDimensionError, match=r"shape \(..., q, 2\)"):
            model.posterior(torch.rand(3, 1, dtype=torch.float64))
        with pytest.raises(BotorchTensorDimensionError, match=r"1 output"):
            model.posterior(model.train_X, output_indices=[1])


def one_at_a_time(start, count=8, iterations=8, **settings):
    return OneAtATime(RandomSubset(count), LBFGSB(iterations), start=start, hold_mean=False, **settings)


def select(strategy, seed=0, y=None, **options):
    model = make_model()
    arguments = {"X": model.train_X, "y": model.train_y if y is None else y}
    kernel, likelihood = make_model().covar_module, make_model().likelihood
    generator = torch.Generator().manual_seed(seed)
    return select_laplace_knots(
        **arguments, kernel=kernel, likelihood=likelihood, strategy=strategy, generator=generator,
        **options,
    )  # fmt: skip


class TestSelection:
    def test_objectives_of_candidates(self):
        model = make_model("bernoulli")
        rows = torch.tensor([7, 20, 31])
        values = candidate_objectives(model)(rows)
        for value, row in zip(values, rows, strict=True):
            grown = model.with_knots(torch.cat([model.knots.detach(), model.train_X[row : row + 1]]))
            torch.testing.assert_close(value, grown.objective().detach(), rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize(
        "proposal", [RandomSubset(8), BayesianOptimization(3, 6)], ids=["subset", "Bayesian optimization"]
    )
    def test_one_at_a_time(self, proposal):
        start = make_model().knots.detach()
        strategy = OneAtATime(proposal, LBFGSB(8), start=start, max_knots=9, tolerance=0.0, hold_mean=False)
        first, second = select(strategy), select(strategy)
        assert torch.equal(first.knots, second.knots)
        objectives = [step.objective for step in first.history]
        assert objectives == sorted(objectives)
        assert len(objectives) > 1
        assert torch.equal(first.knots[:6], start)  # old knots stay
        assert float(first.model.objective().detach()) == pytest.approx(objectives[-1], abs=1e-8)
        assert first.history[-1].upper_bound == torch.inf

    def test_why_it_stops(self):
        start = make_model().knots.detach()
        most = select(one_at_a_time(start, iterations=2, max_knots=6))
        assert most.stop_reason == "there are 6 knots, the most allowed"
        assert len(most.history) == 1
        strict = select(one_at_a_time(start, count=2, iterations=2, tolerance=1e6))
        assert "added no more than" in strict.stop_reason
        assert strict.model.num_knots == 6

    def test_every_row_a_knot(self):
        X = torch.tensor([[0.0], [1.0], [2.0], [2.0]], dtype=torch.float64)
        y = torch.tensor([0.0, 5.0, 1.0, 2.0], dtype=torch.float64)
        found = select_laplace_knots(X, y, RBFKernel(), LogPoissonLikelihood(), strategy=one_at_a_time(X[:3]))
        assert found.stop_reason == "all 3 distinct rows have a knot"

    def test_other_strategies(self):
        several = select(Simultaneous(5, LBFGSB(10)))
        assert several.history[-1].objective > several.history[0].objective
        ruled = select(Reinitialization(5, greedy_variance_knots, num_rounds=2, fit_iterations=5))
        assert ruled.knots.shape[0] == 5
        with pytest.raises(ValueError, match="choose them by OneAtATime"):
            select(GreedyBlocks(max_knots=8, subset_size=0, fit_iterations=2))

    def test_an_interruption_keeps_the_best(self, monkeypatch):
        calls = {"count": 0}
        refit = LBFGSB.optimize

        def interrupted(self, model, knots=None):
            calls["count"] += 1
            if calls["count"] == 3:
                raise KeyboardInterrupt
            return refit(self, model, knots)

        monkeypatch.setattr(LBFGSB, "optimize", interrupted)
        with pytest.warns(UserWarning, match="interrupted with 7 knots"):
            found = select(one_at_a_time(make_model().knots.detach(), count=4, iterations=3, tolerance=0.0))
        assert found.stop_reason == "interrupted"
        assert found.model.num_knots == 7

    def test_candidates_that_fail_are_passed_over(self, monkeypatch):
        model = make_model()
        objective = SparseLaplaceGP.objective

        def failing(self):
            if bool((self.knots[-1] == model.train_X[20]).all()):
                raise NumericalError("planted")
            return objective(self)

        monkeypatch.setattr(SparseLaplaceGP, "objective", failing)
        values = candidate_objectives(model)(torch.tensor([20, 21]))
        assert float(values[0]) == -torch.inf
        assert bool(values[1].isfinite())
        found = select(one_at_a_time(model.knots.detach(), count=30, iterations=2, max_knots=8))
        assert all(20 not in step.rows for step in found.history)

    def test_constant_targets_are_refused(self):
        with pytest.raises(ValueError, match="constant"):
            select(one_at_a_time(3), y=torch.ones_like(make_model().train_y))


def test_another_kernel_makes_another_posterior():
    model = make_model()
    points = model.train_X[:4] + 0.05
    before = model.posterior(points).mean.detach()
    model.covar_module = ScaleKernel(MaternKernel(nu=0.5)).double()
    fresh = SparseLaplaceGP(
        model.train_X, model.train_y, model.knots.detach(), model.covar_module, model.likelihood, model.mean_module,
        offset=model.offset, noise=float(model.noise.detach()), nugget=model.nugget,
    )  # fmt: skip
    assert torch.allclose(model.posterior(points).mean, fresh.posterior(points).mean, atol=1e-6)
    assert not torch.allclose(model.posterior(points).mean, before, atol=1e-3)
