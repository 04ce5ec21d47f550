"""Experts of every kind against dense linear algebra; what is cached; what cannot serve."""

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import Log, Standardize
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.models import ApproximateGP, ExactGP
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

from gp_ensembles.bo import EnsembleModel
from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.papers.fusion import ExpertPredictions, predict_experts
from gp_ensembles.papers.fusion.experts import PredictiveExpert, leave_one_out, predict_expert
from tests.papers.fusion.cases import F64, close, seeded, spoil


class Exact(ExactGP):
    def __init__(self, X, y, likelihood, mean=None, kernel=None):
        super().__init__(X, y, likelihood)
        self.mean_module = mean or ZeroMean()
        self.covar_module = kernel or ScaleKernel(RBFKernel())

    def forward(self, X):
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))


class Approximate(ApproximateGP):
    def __init__(self, Z):
        super().__init__(VariationalStrategy(self, Z, CholeskyVariationalDistribution(len(Z))))
        self.mean_module, self.covar_module = ZeroMean(), ScaleKernel(RBFKernel())

    def forward(self, X):
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))


def rows(N=12, D=2, seed=0):
    generator = seeded(seed)
    X = torch.rand(N, D, dtype=F64, generator=generator)
    return X, X.sum(1).mul(5).sin() + 0.1 * torch.randn(N, dtype=F64, generator=generator)


def exact(X, y, noise=0.0225, lengthscale=0.35, outputscale=0.81):
    model = Exact(X, y, GaussianLikelihood()).double()
    model.likelihood.noise = noise
    model.covar_module.outputscale = outputscale
    model.covar_module.base_kernel.lengthscale = lengthscale
    return model


def online():
    X, y = rows()
    expert = GaussianExpert(LinearFeatures(2, torch.tensor(1.0, dtype=F64)))
    ensemble = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
    ensemble.observe(X, y)
    return ensemble


def approximate():
    model = Approximate(rows(5)[0]).double()
    return model, GaussianLikelihood().double()


class Constant(PredictiveExpert):
    def predict(self, X):
        one = torch.ones_like(X[:, 0]).unsqueeze(0)
        return ExpertPredictions(2 * one, 3 * one, 0.5 * one[:, :1])


KINDS = {
    "exact": lambda: exact(*rows()),
    "pair": lambda: (exact(*rows()), GaussianLikelihood().double()),
    "approximate": approximate,
    "botorch": lambda: SingleTaskGP(rows()[0], rows()[1].unsqueeze(-1)),
    "transformed": lambda: SingleTaskGP(rows()[0], 100 * rows()[1].unsqueeze(-1), input_transform=Normalize(2)),
    "ensemble model": lambda: EnsembleModel(rows()[0], rows()[1].unsqueeze(-1), generator=seeded(0)),
    "online": online,
    "own": Constant,
}


def test_golden_expert(archive):
    numbers = archive("fusion_exact_gp_expert")
    scales = (numbers[key] for key in ("noise_var", "lengthscale", "outputscale"))
    found = predict_experts([exact(numbers["x"].unsqueeze(-1), numbers["y"], *scales)], numbers["x_star"].unsqueeze(-1))
    close(found.mean[0], numbers["mean"], 1e-8)
    close(found.variance[0], numbers["var_f"], 1e-8)
    close(found.target_variance[0], numbers["var_y"], 1e-8)


def test_contract():
    X = rows(30)[0]
    for make in KINDS.values():
        expert = make()
        found = predict_experts([expert, expert], X)
        for part in found:
            assert (part.shape, part.dtype, part.requires_grad) == ((2, 30), F64, False)
            assert torch.equal(part[0], part[1])
        assert bool((found.target_variance >= found.variance).all())
        # Any batches, any order, one row: the same.
        for part, other in zip(found, predict_experts([expert], X, batch_size=7), strict=True):
            close(other[0], part[0], 1e-6)
        close(predict_experts([expert], X.flip(0)).mean[0].flip(0), found.mean[0], 1e-6)
        close(predict_experts([expert], X[4:5]).mean[0], found.mean[0, 4:5], 1e-6)


def test_botorch_predicts_in_the_users_units():
    X, y = rows()
    model = SingleTaskGP(X, 100 * y.unsqueeze(-1), outcome_transform=Standardize(1), input_transform=Normalize(2))
    found = predict_experts([model], X)
    posterior = model.posterior(X, observation_noise=True)
    close(found.mean[0], posterior.mean.squeeze(-1))
    close(found.target_variance[0], posterior.variance.squeeze(-1))
    noise = model.likelihood.noise * (100 * y.std()).square()
    close(found.noise[0], noise.expand(12), 1e-6)


class Short(PredictiveExpert):
    def predict(self, X):
        return Constant().predict(X[:1])


class Certain(PredictiveExpert):
    def predict(self, X):
        return Constant().predict(X)._replace(variance=torch.zeros_like(X[:, 0]).unsqueeze(0))


def multi_output():
    X, y = rows()
    return SingleTaskGP(X, torch.stack([y, -y], 1))


def test_what_cannot_serve():
    for make, error, message in [
        (lambda: "a string", TypeError, "a str cannot serve as an expert"),
        (lambda: (exact(*rows()), 3), TypeError, r"got \(Exact, int\)"),
        (lambda: (approximate()[0], BernoulliLikelihood()), TypeError, "BernoulliLikelihood; wrap it"),
        (multi_output, ValueError, "must predict one output"),
        (Short, ValueError, r"expert 1 must predict shapes \(1, 12\), got \(1, 1\)"),
        (Certain, ValueError, "expert 1 has 0 at row 0"),
    ]:
        with pytest.raises(error, match=message):
            predict_experts([Constant(), make()], rows()[0])
    with pytest.raises(TypeError, match="a pair"):
        predict_expert(approximate()[0], rows()[0])


def test_bad_inputs():
    X = rows()[0]
    with pytest.raises(ValueError, match="at least one expert"):
        predict_experts([], X)
    with pytest.raises(ValueError, match="batch_size"):
        predict_experts([Constant()], X, batch_size=0)
    shape = r"inputs must have shape \(N, D\)"
    for bad, message in ((X[:, 0], shape), (X[:0], shape), (spoil(X, (3, 1), torch.nan), r"but inputs\[3, 1\] is nan")):
        with pytest.raises(ValueError, match=message):
            predict_experts([Constant()], bad)


@pytest.mark.parametrize("noisy", [False, True])
def test_leave_one_out_is_refitting(noisy):
    (X, y), everything = rows(15), torch.arange(15)
    noise = torch.linspace(0.01, 0.2, 15, dtype=F64) if noisy else torch.full((15,), 0.05, dtype=F64)
    likelihood = FixedNoiseGaussianLikelihood(noise) if noisy else GaussianLikelihood()
    model = Exact(X, y, likelihood, ConstantMean()).double()
    model.mean_module.constant.data.fill_(0.7)
    if not noisy:
        model.likelihood.noise = 0.05
    found, m = leave_one_out(model), 0.7
    K = model.covar_module(X).to_dense().detach()
    C = K + noise.diag()
    for row in everything:
        keep = everything != row
        gain = torch.linalg.solve(C[keep][:, keep], K[keep, row])
        close(found.mean[0, row], m + gain @ (y[keep] - m), 1e-8)
        close(found.variance[0, row], C[row, row] - gain @ K[keep, row], 1e-8)
    close(leave_one_out(model.eval()).mean, found.mean)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
def test_leave_one_out_with_transforms():
    X, y = rows(15)
    plain = SingleTaskGP(X, y.unsqueeze(-1), outcome_transform=None)
    unit = (X - X.amin(0)) / (X.amax(0) - X.amin(0))
    reference = SingleTaskGP(unit, ((y - y.mean()) / y.std()).unsqueeze(-1), outcome_transform=None)
    reference.load_state_dict(plain.state_dict())
    model = SingleTaskGP(X, y.unsqueeze(-1), input_transform=Normalize(2))
    expected, found = leave_one_out(reference), leave_one_out(model)
    close(found.mean, y.mean() + y.std() * expected.mean, 1e-8)
    close(found.variance, y.var() * expected.variance, 1e-8)
    model.posterior(X[:3])
    close(leave_one_out(model).mean, found.mean)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
def test_leave_one_out_of_what_it_cannot():
    X, y = rows()
    for model, error, message in [
        (Constant(), TypeError, "needs an ExactGP, got a Constant"),
        (multi_output(), ValueError, "one output"),
        (Exact(None, None, GaussianLikelihood()), ValueError, "no training data"),
        (SingleTaskGP(X, y.exp().unsqueeze(-1), outcome_transform=Log()), ValueError, "does not keep predictions norm"),
    ]:
        with pytest.raises(error, match=message):
            leave_one_out(model)
