"""The sparse process as a model: dense algebra, golden predictions, BoTorch, fits, stale caches, bad input."""

import io
from copy import deepcopy
from itertools import cycle

import numpy as np
import pytest
import torch
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import BotorchError, BotorchTensorDimensionError
from botorch.fit import fit_gpytorch_mll
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch import ExactMarginalLogLikelihood
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean, LinearMean, ZeroMean
from gpytorch.models import ExactGP
from gpytorch.priors import GammaPrior, NormalPrior

from gp_ensembles.papers.sparse import DIC, DTC, FIC, FITC, VFE, SparseGP
from gp_ensembles.papers.sparse import fitting as fitting_module
from gp_ensembles.papers.sparse.collapsed import PowerEP, TightVFE
from gp_ensembles.papers.sparse.fitting import Coordinates, fit_sparse

ALL = [VFE(), TightVFE(), DTC(), DIC(), FITC(), FIC(), PowerEP(0.4)]
# Singular covariances are as they should be: of points that coincide, or are more than the knots of DIC.
allow_singular = pytest.mark.filterwarnings("ignore::linear_operator.utils.warnings.NumericalWarning")
KERNELS = {
    "rbf": lambda: ScaleKernel(RBFKernel()),
    "matern ard": lambda: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2)),
    "periodic times rbf": lambda: ScaleKernel(PeriodicKernel() * RBFKernel()),
    "linear and rbf": lambda: LinearKernel() + ScaleKernel(RBFKernel()),
}


def name_of(part):
    return part if isinstance(part, str) else type(part).__name__


def value_of(tensor):
    return float(tensor.detach())


def make_data(seed=0, num_rows=40):
    draws = np.random.default_rng(seed)
    X = torch.as_tensor(draws.uniform(size=(num_rows, 2)))
    y = torch.sin(6.0 * X[:, 0]) + X[:, 1].square() + 0.1 * torch.as_tensor(draws.normal(size=num_rows)) + 3.0
    return X, y


def make_model(kernel="rbf", num_knots=6, seed=0, **settings):
    X, y = make_data(seed)
    likelihood = GaussianLikelihood().double()
    likelihood.noise = 0.05
    made = SparseGP(X, y, X[:num_knots] + 0.01, KERNELS[kernel]().double(), likelihood, **settings)
    made.requires_grad_(True)
    return made


@pytest.fixture
def model():
    return make_model()


# --- predictions -----------------------------------------------------------------------------------------------------


def dense_prediction(model, X, alpha, joint):
    """Bayes' rule for the values at the knots with N x N matrices and plain inverses; no factor is shared."""
    with torch.no_grad():
        Z, data = model.knots, model.train_X
        own = model.covar_module(Z, Z).to_dense()
        delta = model.nugget * own.diagonal().mean()
        inverse = torch.linalg.inv(own + delta * torch.eye(len(Z), dtype=X.dtype))
        to_data, to_test = model.covar_module(data, Z).to_dense(), model.covar_module(X, Z).to_dense()
        gap = model.covar_module(data, diag=True) + delta - (to_data @ inverse @ to_data.mT).diagonal()
        through = to_data @ inverse @ to_data.mT
        seen = torch.linalg.inv(through + torch.diag(model.likelihood.noise + alpha * gap))
        cross, explained = to_test @ inverse @ to_data.mT, to_test @ inverse @ to_test.mT
        prior = model.covar_module(X, X).to_dense()
        rest = {"full": prior - explained, "diagonal": torch.diag((prior - explained).diagonal()), "none": 0.0 * prior}[
            joint
        ]
        mean = model.mean_module(X) + cross @ seen @ (model.train_y - model.mean_module(data))
        return mean, rest + explained - cross @ seen @ cross.mT


SHAPES = {"DIC": (0.0, "none"), "FITC": (1.0, "full"), "FIC": (1.0, "diagonal"), "PowerEP": (0.4, "full")}


@pytest.mark.parametrize(("approximation", "kernel"), list(zip(ALL, cycle(KERNELS))), ids=name_of)
@allow_singular
def test_joint_predictions_are_dense_algebra(approximation, kernel):
    model = make_model(kernel, approximation=approximation, nugget=1e-4)
    X = torch.cat([make_data(9, 5)[0], model.train_X[:3], 3.0 + make_data(8, 2)[0]])
    mean, covariance = dense_prediction(model, X, *SHAPES.get(name_of(approximation), (0.0, "full")))
    found = model.posterior(X)
    scale = float(covariance.diagonal().max())
    assert torch.allclose(found.mean.squeeze(-1), mean, rtol=1e-7, atol=1e-7)
    assert torch.allclose(found.distribution.covariance_matrix, covariance, rtol=1e-7, atol=1e-7 * (1.0 + scale))
    assert torch.allclose(found.variance.squeeze(-1), covariance.diagonal(), rtol=1e-7, atol=1e-7 * (1.0 + scale))


def golden_model(folder, name, approximation):
    with np.load(folder / f"knots_fixed_{name}.npz") as file:
        data = {key: torch.as_tensor(file[key]).double() for key in file.files}
    kernel, likelihood, mean = (
        ScaleKernel(RBFKernel(ard_num_dims=len(data["lengthscale"]))),
        GaussianLikelihood(),
        ConstantMean(),
    )
    for module in (kernel, likelihood, mean):
        module.double()
    likelihood.noise_covar.register_constraint("raw_noise", GreaterThan(1e-12))
    kernel.outputscale, kernel.base_kernel.lengthscale = data["sigma"] ** 2, data["lengthscale"]
    likelihood.noise, mean.constant = data["tau"] ** 2, data["mean"]
    nugget = float(data["delta"] / data["sigma"] ** 2)
    return SparseGP(
        data["X"], data["y"], data["Z"], kernel, likelihood, mean, approximation=approximation, nugget=nugget
    ), data


@pytest.mark.parametrize("name", ["iso2d", "boston", "bostonard"])
def test_golden_predictions(golden, name):
    for kind, approximation in (("fic", FITC()), ("fic", FIC()), ("vfe", VFE()), ("vfe", TightVFE()), ("sor", DIC())):
        model, data = golden_model(golden, name, approximation)
        delta, noise = data["delta"], data["tau"] ** 2
        if kind != "fic":  # the reference has the nugget in the noise of these
            model.likelihood.noise = noise + delta
        found = model.posterior(data["Xtest"])
        mean, variance = found.mean.squeeze(-1), found.variance.squeeze(-1) + noise
        # Its predictions of VFE are those of the function with its nugget.
        extra = delta if kind == "vfe" else 0.0
        assert torch.allclose(mean, data[f"{kind}_pred_mean"], rtol=1e-8, atol=1e-8)
        assert torch.allclose(variance + extra, data[f"{kind}_pred_var"], rtol=1e-8, atol=1e-8)
        # Test points of the reference's FIC are independent given the knots.
        if f"{kind}_pred_cov" in data and not isinstance(approximation, FITC):
            # These include the nugget, that of FIC as well.
            joint = found.distribution.covariance_matrix + (noise + delta) * torch.eye(len(mean), dtype=mean.dtype)
            assert torch.allclose(joint, data[f"{kind}_pred_cov"], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["iso2d", "boston", "bostonard"])
def test_golden_objectives(golden, name):
    model, data = golden_model(golden, name, FIC())
    assert value_of(model.objective()) == pytest.approx(float(data["fic_logml"]), rel=1e-9)
    model, data = golden_model(golden, name, VFE())
    assert value_of(model.objective()) == pytest.approx(float(data["elbo"]), abs=5e-4)
    assert value_of(model.objective()) <= float(data["full_logml"]) <= value_of(model.upper_bound())


class Exact(ExactGP):
    def __init__(self, model):
        super().__init__(model.train_X, model.train_y, model.likelihood)
        self.mean_module, self.covar_module = model.mean_module, model.covar_module

    def forward(self, X):
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))


@pytest.mark.parametrize(
    ("approximation", "kernel"), list(zip(ALL, cycle(["matern ard", "periodic times rbf"]))), ids=name_of
)
def test_knots_at_the_data_give_the_exact_process(approximation, kernel):
    X, y = make_data()
    likelihood = GaussianLikelihood().double()
    likelihood.noise = 0.05
    model = SparseGP(X, y, X, KERNELS[kernel]().double(), likelihood, approximation=approximation, nugget=1e-10)
    exact = Exact(model)
    evidence = ExactMarginalLogLikelihood(model.likelihood, exact)(exact(X), y) * len(y)
    assert value_of(model.objective()) == pytest.approx(value_of(evidence), abs=1e-5)
    assert value_of(model.upper_bound()) == pytest.approx(value_of(evidence), abs=1e-5)
    exact.eval()
    points = make_data(7, 6)[0]
    found, expected = model.eval()(points), exact(points)
    assert torch.allclose(found.mean, expected.mean, atol=1e-6)
    if not isinstance(approximation, DIC | FIC):
        assert torch.allclose(found.covariance_matrix, expected.covariance_matrix, atol=1e-6)
    elif isinstance(approximation, FIC):
        assert torch.allclose(found.variance, expected.variance, atol=1e-6)


def test_noise_is_added_once(model):
    X = make_data(3, 4)[0]
    silent, noisy = model.posterior(X), model.posterior(X, observation_noise=True)
    assert torch.allclose(noisy.variance, silent.variance + 0.05)
    given = torch.tensor([[0.1], [0.2], [0.3], [0.4]], dtype=torch.float64)
    assert torch.allclose(model.posterior(X, observation_noise=given).variance, silent.variance + given)
    assert torch.allclose(model.likelihood(model(X)).variance.unsqueeze(-1), noisy.variance)


# --- BoTorch ---------------------------------------------------------------------------------------------------------


def test_batches_are_their_parts():
    for approximation in ALL:
        model = make_model(approximation=approximation)
        X = make_data(4, 24)[0].reshape(2, 3, 4, 2)
        found = model.posterior(X)
        assert found.mean.shape == (2, 3, 4, 1)
        for i in range(2):
            for j in range(3):
                part = model.posterior(X[i, j])
                assert torch.allclose(found.mean[i, j], part.mean)
                assert torch.allclose(
                    found.distribution.covariance_matrix[i, j], part.distribution.covariance_matrix, atol=1e-12
                )
        samples = found.rsample(torch.Size([5]))
        assert samples.shape == (5, 2, 3, 4, 1)


def test_gradients_in_the_inputs_by_finite_differences():
    for approximation in ALL:
        model = make_model("matern ard", approximation=approximation)
        X = make_data(5, 4)[0].reshape(2, 2, 2).requires_grad_()

        def moments(X, model=model):
            posterior = model.posterior(X)
            return posterior.mean, posterior.distribution.covariance_matrix

        assert torch.autograd.gradcheck(moments, (X,))


def test_acquisition_functions_are_optimized(model):
    fit_sparse(model, knots=True, max_iterations=30)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    improvement = LogExpectedImprovement(model, best_f=model.train_y.max())
    best, value = optimize_acqf(
        improvement, bounds, q=1, num_restarts=3, raw_samples=32, options={"seed": 1, "maxiter": 30}
    )
    lattice = torch.cartesian_prod(*torch.linspace(0, 1, 15, dtype=torch.float64).expand(2, 15)).unsqueeze(-2)
    assert float(value) >= value_of(improvement(lattice).max()) - 1e-3
    assert best.shape == (1, 2)
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=3)
    together = qLogExpectedImprovement(model, best_f=model.train_y.max(), sampler=sampler)
    pair, _ = optimize_acqf(together, bounds, q=2, num_restarts=2, raw_samples=8, options={"seed": 1, "maxiter": 10})
    assert pair.shape == (2, 2)


@allow_singular
def test_points_may_coincide_or_be_many():
    for approximation in ALL:
        model = make_model(approximation=approximation)
        x = make_data(3, 1)[0]
        twice = model.posterior(x.repeat(3, 1))
        assert torch.allclose(twice.variance, model.posterior(x).variance.expand(3, 1), atol=1e-10)
        lattice = torch.cartesian_prod(*torch.linspace(0, 1, 20, dtype=torch.float64).expand(2, 20))
        many = model.posterior(lattice)
        assert many.mean.shape == (400, 1)
        assert value_of(many.variance.min()) >= 0.0
        assert bool(twice.rsample(torch.Size([4])).isfinite().all())


def test_posterior_transforms_and_outputs(model):
    X = make_data(3, 4)[0]
    transform = ScalarizedPosteriorTransform(torch.tensor([-2.0], dtype=torch.float64))
    found = model.posterior(X, posterior_transform=transform)
    assert torch.allclose(found.mean, -2.0 * model.posterior(X).mean)
    assert torch.allclose(found.variance, 4.0 * model.posterior(X).variance)
    assert torch.equal(model.posterior(X, output_indices=[0]).mean, model.posterior(X).mean)
    assert (model.num_outputs, model.batch_shape) == (1, torch.Size())
    with pytest.raises(BotorchTensorDimensionError, match=r"the model has 1 output\(s\)"):
        model.posterior(X, output_indices=[1])
    with pytest.raises(BotorchTensorDimensionError, match=r"must have shape \(\.\.\., q, 2\)"):
        model.posterior(X[:, :1])
    with pytest.raises(BotorchTensorDimensionError, match=r"must have shape \(\.\.\., q, 2\)"):
        model.posterior(X[0])


# --- state -----------------------------------------------------------------------------------------------------------


def predict(model, X=None):
    X = make_data(3, 4)[0] if X is None else X
    with torch.no_grad():
        posterior = model.posterior(X)
        return torch.cat([posterior.mean.squeeze(-1), posterior.variance.squeeze(-1)])


def test_state_travels(model):
    fit_sparse(model, knots=True, max_iterations=5)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other, elsewhere = make_model(), make_model(seed=1)
    before = predict(other)
    other.load_state_dict(torch.load(buffer))
    assert not torch.equal(predict(other), before)
    assert torch.equal(predict(other), predict(model))
    assert value_of(other.objective()) == value_of(model.objective())
    elsewhere.load_state_dict(model.state_dict())
    assert not torch.allclose(predict(elsewhere), predict(model)), "rows of data travel with no state"


def test_copies_are_independent(model):
    before = predict(model)
    other = deepcopy(model)
    assert torch.equal(predict(other), before)
    fit_sparse(other, knots=True, max_iterations=5)
    assert torch.equal(predict(model), before)
    assert not torch.equal(predict(other), before)
    moved = model.with_knots(model.knots[:3])
    assert moved.num_knots == 3
    assert moved.covar_module is not model.covar_module
    assert torch.equal(predict(model), before)


def change_in_place(model):
    with torch.no_grad():
        model.knots.add_(0.05)


def change_the_noise(model):
    model.likelihood.noise = 0.5  # GPyTorch's setters write to .data


def change_the_kernel(model):
    model.covar_module.base_kernel.lengthscale = 0.2


def change_the_mean(model):
    model.mean_module.initialize(constant=-4.0)


def change_by_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    (-model.objective()).backward()
    optimizer.step()


def change_the_knots(model):
    model.knots = torch.nn.Parameter(model.knots.detach() + 0.05)


def change_the_approximation(model):
    model.approximation = FITC()


def change_the_nugget(model):
    model.nugget = 0.1


def change_by_fit(model):
    fit_sparse(model, max_iterations=3)


CHANGES = [
    change_in_place,
    change_the_noise,
    change_the_kernel,
    change_the_mean,
    change_by_step,
    change_the_knots,
    change_the_approximation,
    change_the_nugget,
    change_by_fit,
]


def test_predictions_follow_every_change():
    for change in CHANGES:
        model = make_model()
        before = predict(model)
        change(model)
        fresh = SparseGP(
            model.train_X,
            model.train_y,
            model.knots,
            deepcopy(model.covar_module),
            deepcopy(model.likelihood),
            deepcopy(model.mean_module),
            approximation=model.approximation,
            nugget=model.nugget,
        )
        assert torch.allclose(predict(model), predict(fresh), rtol=1e-12, atol=1e-12)
        assert not torch.allclose(predict(fresh), before, rtol=1e-6)


def test_predictions_are_kept_between_changes(model, monkeypatch):
    calls = []
    original = SparseGP.projection
    monkeypatch.setattr(SparseGP, "projection", lambda self, *rest: calls.append(1) or original(self, *rest))
    for _ in range(3):
        predict(model)
    assert len(calls) == 1


def test_conditioning_is_a_model_of_all_rows():
    for approximation in ALL:
        model = make_model(approximation=approximation)
        before = predict(model)
        X, y = make_data(6, 9)
        other = model.condition_on_observations(X, y.unsqueeze(-1))
        fresh = SparseGP(
            torch.cat([model.train_X, X]),
            torch.cat([model.train_y, y]),
            model.knots,
            deepcopy(model.covar_module),
            deepcopy(model.likelihood),
            deepcopy(model.mean_module),
            approximation=approximation,
        )
        assert torch.allclose(predict(other), predict(fresh), rtol=1e-12, atol=1e-12)
        assert torch.allclose(other.objective(), fresh.objective())
        assert torch.equal(predict(model), before)
        assert len(model.train_y) == 40
        twice = model.condition_on_observations(X[:4], y[:4].unsqueeze(-1))
        twice = twice.condition_on_observations(X[4:], y[4:].unsqueeze(-1))
        assert torch.allclose(predict(twice), predict(other), rtol=1e-9)


def test_conditioning_refuses_rows_that_do_not_fit(model):
    for X, Y in [
        (torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)),
        (torch.zeros(2, 2, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)),
        (torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)),
        (torch.zeros(2, 2, dtype=torch.float64), torch.full((2, 1), torch.nan, dtype=torch.float64)),
        (torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)),
    ]:
        before = predict(model)
        with pytest.raises(BotorchError, match=r"must have shape|1 output|Y is nan"):
            model.condition_on_observations(X, Y)
        assert torch.equal(predict(model), before)


def test_conditioning_refuses_unknown_settings(model):
    X, y = make_data(6, 2)
    with pytest.raises(ValueError, match="unknown settings"):
        model.condition_on_observations(X, y.unsqueeze(-1), weight=2.0)


# --- objective and fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_of_the_objective_by_finite_differences(kernel):
    model = make_model(kernel, mean=LinearMean(2))
    names = [name for name, _ in model.named_parameters()]
    values = tuple(parameter.detach().clone().requires_grad_() for parameter in model.parameters())

    class Objective(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self):
            return self.model.objective()

    whole = Objective()

    def objective(*values):
        named = {f"model.{name}": value for name, value in zip(names, values, strict=True)}
        return torch.func.functional_call(whole, named, ())

    assert torch.autograd.gradcheck(objective, values, atol=1e-4, rtol=1e-4)


def test_priors_are_in_the_objective(model):
    bare = value_of(model.objective())
    lengthscale, noise, constant = GammaPrior(3.0, 6.0), GammaPrior(1.1, 0.05), NormalPrior(0.0, 1.0)
    model.covar_module.base_kernel.register_prior("lengthscale_prior", lengthscale, "lengthscale")
    model.likelihood.register_prior("noise_prior", noise, lambda module: module.noise)
    model.mean_module.register_prior("mean_prior", constant, "constant")
    expected = (
        bare
        + value_of(lengthscale.log_prob(model.covar_module.base_kernel.lengthscale).sum())
        + value_of(noise.log_prob(model.likelihood.noise).sum())
        + value_of(constant.log_prob(model.mean_module.constant).sum())
    )
    assert value_of(model.objective()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("approximation", "kernel"), list(zip(cycle([VFE(), FITC()]), KERNELS)), ids=name_of)
def test_fits_climb_to_a_stationary_point(kernel, approximation):
    model = make_model(kernel, approximation=approximation)
    before = value_of(model.objective())
    fit = fit_sparse(model, max_iterations=150)
    assert fit.objective == pytest.approx(value_of(model.objective()), rel=1e-9)
    assert fit.objective > before
    assert fit.num_evaluations >= 2
    coordinates = Coordinates(model)
    place = coordinates.read()
    slope = coordinates.evaluate(place)[1]
    low, high = coordinates.bounds
    inside = (place > low + 1e-9) & (place < high - 1e-9)
    assert float((slope * inside).abs().max()) < 0.3


def test_what_moves_is_chosen(model):
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    fit_sparse(model, knots=True, hyperparameters=False, max_iterations=5)
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, start[name])}
    assert changed == {"knots"}
    start["knots"] = model.knots.detach().clone()
    model.mean_module.requires_grad_(False)
    fit_sparse(model, max_iterations=5)
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, start[name])}
    assert changed == set(start) - {"knots", "mean_module.raw_constant"}
    with pytest.raises(ValueError, match="nothing is to move"):
        fit_sparse(model, hyperparameters=False)


def test_knots_stay_near_the_data(model):
    fit_sparse(model, knots=True, max_iterations=100)
    low, high = model.train_X.amin(0), model.train_X.amax(0)
    margin = 0.1 * (high - low) * (1.0 + 1e-9)
    assert bool(((model.knots >= low - margin) & (model.knots <= high + margin)).all())


def test_scales_do_not_run_away():
    X, _ = make_data()
    # Targets that are a plane: the bound rises for ever longer lengthscales and ever larger variances.
    model = SparseGP(X, X @ X.new_tensor([1.0, 2.0]), X[:8], ScaleKernel(RBFKernel()), GaussianLikelihood())
    start = [value_of(model.covar_module.outputscale), value_of(model.covar_module.base_kernel.lengthscale)]
    fit_sparse(model, knots=True, max_iterations=100)
    end = [value_of(model.covar_module.outputscale), value_of(model.covar_module.base_kernel.lengthscale)]
    for before, after in zip(start, end, strict=True):
        assert before / 1.001e4 <= after <= before * 1.001e4
    assert value_of(model.likelihood.noise) >= 1e-4  # the likelihood's own constraint
    assert bool(predict(model).isfinite().all())


def test_constrained_parameters_of_any_sign_are_fitted():
    for target in (-2.0, 2.0):
        for start in (-0.5, 0.0, 0.5):
            X, y = make_data()
            mean = ConstantMean(constant_constraint=Interval(-10.0, 10.0)).double()
            mean.constant = start
            # A narrow kernel leaves the level of the targets to the mean.
            kernel = ScaleKernel(RBFKernel()).double()
            kernel.base_kernel.lengthscale = 0.01
            model = SparseGP(X, y - y.mean() + target, X[:8], kernel.requires_grad_(False), mean=mean)
            model.likelihood.requires_grad_(False)
            fit = fit_sparse(model)
            assert value_of(mean.constant) == pytest.approx(target, abs=0.5)
            assert fit.objective == pytest.approx(value_of(model.objective()), rel=1e-12)


def failing_after(count, error, monkeypatch):
    original, calls = SparseGP.objective, []

    def objective(self):
        calls.append(1)
        if len(calls) > count:
            raise error
        return original(self)

    monkeypatch.setattr(SparseGP, "objective", objective)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError("full")], ids=["interrupted", "failed"])
def test_the_best_parameters_are_kept_on_failure(model, monkeypatch, error):
    before = value_of(model.objective())
    with monkeypatch.context() as patch:
        failing_after(8, error, patch)
        with pytest.raises(type(error)):
            fit_sparse(model, knots=True)
    assert value_of(model.objective()) > before
    assert bool(predict(model).isfinite().all())


def test_a_point_without_a_value_ends_no_fit(model, monkeypatch):
    original, calls = SparseGP.objective, []
    before = value_of(model.objective())

    def objective(self):
        calls.append(1)
        if len(calls) in (5, 9):
            raise fitting_module.NumericalError("a matrix is not positive definite")
        return original(self)

    monkeypatch.setattr(SparseGP, "objective", objective)
    fit = fit_sparse(model, knots=True)
    assert fit.objective == pytest.approx(value_of(original(model)), rel=1e-12)
    assert fit.objective > before
    assert fit.num_evaluations > 9


def test_an_objective_without_a_value_at_the_start_is_refused():
    X, y = make_data()
    model = SparseGP(X, y * 1e200, X[:4], ScaleKernel(RBFKernel()))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(fitting_module.NumericalError):
        fit_sparse(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


# --- input -----------------------------------------------------------------------------------------------------------

X0, Y0 = make_data(0, 10)
BAD = {
    "rows": ((X0, Y0[:5], X0[:2]), "do not fit"),
    "flat inputs": ((X0[:, 0], Y0, X0[:2]), "do not fit"),
    "two outputs": ((X0, X0, X0[:2]), "do not fit"),
    "none": ((X0[:0], Y0[:0], X0[:2]), "do not fit"),
    "integers": ((X0.long(), Y0.long(), X0[:2]), "share a real dtype"),
    "mixed": ((X0, Y0.float(), X0[:2]), "share a real dtype"),
    "nan input": ((X0.index_fill(0, torch.tensor([3]), torch.nan), Y0, X0[:2]), "inputs must be finite, but row 3"),
    "nan target": ((X0, Y0.index_fill(0, torch.tensor([4]), torch.inf), X0[:2]), "targets must be finite, but row 4"),
    "knots of other inputs": ((X0, Y0, X0[:2, :1]), r"knots must be \(K, 2\)"),
    "no knots": ((X0, Y0, X0[:0]), r"knots must be \(K, 2\)"),
    "knots of another dtype": ((X0, Y0, X0[:2].float()), r"knots must be \(K, 2\)"),
    "nan knots": ((X0, Y0, X0[:2] * torch.nan), "knots must be finite"),
    "too many knots": ((X0[:1].repeat(5, 1), Y0[:5], X0[:2]), r"2 knots are more than the 1 distinct row\(s\)"),
}  # fmt: skip


def test_bad_input_is_refused():
    for arguments, message in BAD.values():
        with pytest.raises(ValueError, match=message):
            SparseGP(*arguments, ScaleKernel(RBFKernel()).double())


def test_a_nugget_that_is_no_share_is_refused():
    for nugget in (-1e-6, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="nugget"):
            SparseGP(X0, Y0, X0[:2], ScaleKernel(RBFKernel()), nugget=nugget)


def test_other_knots_that_do_not_fit_are_refused(model):
    for knots in (X0[:2, :1], X0[:0], X0[:2] * torch.nan):
        with pytest.raises(ValueError, match="knots must be"):
            model.with_knots(knots)


def test_targets_may_be_a_column():
    flat = SparseGP(X0, Y0, X0[:3], ScaleKernel(RBFKernel()))
    column = SparseGP(X0, Y0.unsqueeze(-1), X0[:3], ScaleKernel(RBFKernel()))
    assert torch.equal(predict(flat), predict(column))
    assert value_of(flat.mean_module.constant) == pytest.approx(float(Y0.mean()))


def test_a_mean_may_be_given():
    model = SparseGP(X0, Y0, X0[:3], ScaleKernel(RBFKernel()), mean=ZeroMean())
    far = torch.full((1, 2), 1e3, dtype=torch.float64)
    assert value_of(model.posterior(far).mean) == pytest.approx(0.0, abs=1e-9)


def test_the_default_dtype_does_not_matter(wrong_default_dtype):
    model = SparseGP(X0, Y0, X0[:3], ScaleKernel(RBFKernel()))
    fit_sparse(model, knots=True, max_iterations=3)
    assert predict(model).dtype == torch.float64
    assert all(parameter.dtype == torch.float64 for parameter in model.parameters())


# --- GPyTorch's own objective ----------------------------------------------------------------------------------------


def test_gpytorchs_objective_is_this_one_by_row():
    for approximation in (VFE(), TightVFE(), DTC(), FITC(), PowerEP(0.5)):
        model = make_model(approximation=approximation).train()
        objective = ExactMarginalLogLikelihood(model.likelihood, model)
        value = objective(model(model.train_X), model.train_y)
        assert value_of(value) * len(model.train_y) == pytest.approx(value_of(model.objective()), abs=1e-6)
        with pytest.raises(ValueError, match="training inputs only"):
            model(model.train_X[:3])
        assert model.with_knots(model.knots).num_knots == model.num_knots  # the graph of the value is not copied


def test_botorch_fits_it():
    model = make_model()
    before = value_of(model.objective())
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert value_of(model.objective()) > before


def test_other_likelihoods_batches_and_arrays_are_refused():
    X, y = make_data()
    with pytest.raises(ValueError, match="must be a GaussianLikelihood"):
        SparseGP(X, y, X[:3], RBFKernel(), BernoulliLikelihood())
    with pytest.raises(ValueError, match="no batch"):
        SparseGP(X, y, X[:3], RBFKernel(batch_shape=torch.Size([2])))
    with pytest.raises(TypeError, match="torch tensor"):
        SparseGP(X.numpy(), y, X[:3], RBFKernel())


def test_another_kernel_or_power_makes_another_posterior():
    model = make_model(approximation=PowerEP(0.5))
    before = predict(model)
    model.covar_module = ScaleKernel(MaternKernel(nu=0.5)).double()

    def fresh(alpha):
        return SparseGP(
            model.train_X, model.train_y, model.knots.detach(), model.covar_module, model.likelihood, model.mean_module,
            approximation=PowerEP(alpha), nugget=model.nugget,
        )  # fmt: skip

    between = predict(model)
    assert torch.allclose(between, predict(fresh(0.5)))
    assert not torch.allclose(between, before)
    model.approximation.alpha = 0.9
    assert torch.allclose(predict(model), predict(fresh(0.9)))
    assert not torch.allclose(predict(model), between)
