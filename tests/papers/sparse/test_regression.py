"""The sparse process as a model: dense algebra, golden predictions, BoTorch, fits, stale caches, bad input."""

from copy import deepcopy
from itertools import cycle

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch import ExactMarginalLogLikelihood
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean, LinearMean
from gpytorch.priors import GammaPrior, NormalPrior

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.papers.sparse import DIC, DTC, FIC, FITC, VFE, SparseGP
from gp_ensembles.papers.sparse.fitting import Coordinates, fit_sparse
from tests.papers.sparse.problems import CASES, KERNELS, fail_at, name_of, noise_of, read_golden, rows, slopes, value_of

ALL = [VFE, DTC, DIC, FITC, FIC]
# Singular covariances are as they should be: of points that coincide, or are more than the knots of DIC.
allow_singular = pytest.mark.filterwarnings("ignore::linear_operator.utils.warnings.NumericalWarning")


def make_model(kernel="rbf", num_knots=6, seed=0, **settings):
    X, y = rows(seed=seed)
    made = SparseGP(X, y, X[:num_knots] + 0.01, KERNELS[kernel]().double(), noise_of(0.05), **settings)
    return made.requires_grad_(True)


def points(*shape, seed=4):
    return torch.rand(*shape, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def model():
    return make_model()


# --- predictions -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def dense_prediction(model, X, alpha, joint):
    """Bayes' rule for the values at the knots with N x N matrices and plain inverses; no factor is shared."""
    Z, data = model.knots, model.train_X
    own = model.covar_module(Z, Z).to_dense()
    delta = model.nugget * own.diagonal().mean()
    inverse = torch.linalg.inv(own + delta * torch.eye(len(Z), dtype=X.dtype))
    to_data, to_test = model.covar_module(data, Z).to_dense(), model.covar_module(X, Z).to_dense()
    through = to_data @ inverse @ to_data.mT
    gap = model.covar_module(data, diag=True) + delta - through.diagonal()
    seen = torch.linalg.inv(through + torch.diag(model.likelihood.noise + alpha * gap))
    cross, explained = to_test @ inverse @ to_data.mT, to_test @ inverse @ to_test.mT
    rest = joint * (model.covar_module(X, X).to_dense() - explained)
    mean = model.mean_module(X) + cross @ seen @ (model.train_y - model.mean_module(data))
    return mean, rest + explained - cross @ seen @ cross.mT


SHAPES = {"DIC": (0.0, 0.0), "FITC": (1.0, 1.0), "FIC": (1.0, torch.eye(16))}


@pytest.mark.parametrize(("approximation", "kernel"), list(zip(ALL, cycle(KERNELS))), ids=name_of)
@allow_singular
def test_joint_predictions_are_dense_algebra(approximation, kernel):
    model = make_model(kernel, approximation=approximation, nugget=1e-4)
    X = torch.cat([points(5), model.train_X[:3], 3.0 + points(8)])
    mean, covariance = dense_prediction(model, X, *SHAPES.get(name_of(approximation), (0.0, 1.0)))
    found = model.posterior(X)
    atol = 1e-7 * (1.0 + float(covariance.diagonal().max()))
    assert torch.allclose(found.mean.squeeze(-1), mean, rtol=1e-7, atol=1e-7)
    assert torch.allclose(found.distribution.covariance_matrix, covariance, rtol=1e-7, atol=atol)
    assert torch.allclose(found.variance.squeeze(-1), covariance.diagonal(), rtol=1e-7, atol=atol)


def golden_model(data, approximation):
    kernel = ScaleKernel(RBFKernel(ard_num_dims=len(data["lengthscale"]))).double()
    likelihood, mean = GaussianLikelihood().double(), ConstantMean().double()
    likelihood.noise_covar.register_constraint("raw_noise", GreaterThan(1e-12))
    kernel.outputscale, kernel.base_kernel.lengthscale = data["sigma"] ** 2, data["lengthscale"]
    likelihood.noise, mean.constant = data["tau"] ** 2, data["mean"]
    settings = {"approximation": approximation, "nugget": float(data["delta"] / data["sigma"] ** 2)}
    return SparseGP(data["X"], data["y"], data["Z"], kernel, likelihood, mean, **settings)


@pytest.mark.parametrize("name", CASES)
def test_golden_predictions_and_objectives(name):
    data = read_golden(f"fixed_{name}")
    delta, noise = data["delta"], data["tau"] ** 2
    for kind, approximation in (("fic", FITC), ("fic", FIC), ("vfe", VFE), ("sor", DIC)):
        model = golden_model(data, approximation)
        if kind != "fic":  # the reference has the nugget in the noise of these
            model.likelihood.noise = noise + delta
        found = model.posterior(data["Xtest"])
        mean, variance = found.mean.squeeze(-1), found.variance.squeeze(-1) + noise
        # Its predictions of VFE are those of the function with its nugget.
        extra = delta if kind == "vfe" else 0.0
        assert torch.allclose(mean, data[f"{kind}_pred_mean"], rtol=1e-8, atol=1e-8)
        assert torch.allclose(variance + extra, data[f"{kind}_pred_var"], rtol=1e-8, atol=1e-8)
        # Test points of the reference's FIC are independent given the knots.
        if f"{kind}_pred_cov" in data and approximation != FITC:
            # These include the nugget, that of FIC as well.
            joint = found.distribution.covariance_matrix + (noise + delta) * torch.eye(len(mean), dtype=mean.dtype)
            assert torch.allclose(joint, data[f"{kind}_pred_cov"], rtol=1e-8, atol=1e-8)
    assert value_of(golden_model(data, FIC).objective()) == pytest.approx(float(data["fic_logml"]), rel=1e-9)


@pytest.mark.parametrize(
    ("approximation", "kernel"), list(zip(ALL, cycle(["matern ard", "periodic times rbf"]))), ids=name_of
)
def test_knots_at_the_data_give_the_exact_process_of_botorch(approximation, kernel):
    model = make_model(kernel, approximation=approximation, nugget=1e-10)
    X, y = model.train_X, model.train_y
    model = model.with_knots(X)
    modules = model.covar_module, model.mean_module
    exact = SingleTaskGP(X, y[:, None], None, model.likelihood, *modules, outcome_transform=None)
    evidence = value_of(ExactMarginalLogLikelihood(model.likelihood, exact)(exact(X), y) * len(y))
    assert value_of(model.objective()) == pytest.approx(evidence, abs=1e-5)
    assert value_of(model.upper_bound()) == pytest.approx(evidence, abs=1e-5)
    found, expected = model.eval()(points(7)), exact.eval()(points(7))
    assert torch.allclose(found.mean, expected.mean, atol=1e-6)
    if approximation != DIC:
        assert torch.allclose(found.variance, expected.variance, atol=1e-6)
    if approximation not in (DIC, FIC):
        assert torch.allclose(found.covariance_matrix, expected.covariance_matrix, atol=1e-6)


# --- BoTorch ---------------------------------------------------------------------------------------------------------


@allow_singular
def test_points_may_coincide_or_be_many():
    for approximation in ALL:
        model, X = make_model(approximation=approximation), points(1)
        twice = model.posterior(X.repeat(3, 1))
        assert torch.allclose(twice.variance, model.posterior(X).variance.expand(3, 1), atol=1e-10)
        assert bool(twice.rsample(torch.Size([4])).isfinite().all())
        many = model.posterior(torch.cartesian_prod(*torch.linspace(0, 1, 20, dtype=torch.float64).expand(2, 20)))
        assert many.mean.shape == (400, 1)
        assert value_of(many.variance.min()) >= 0.0


def test_gradients_in_the_inputs_by_finite_differences():
    for approximation in ALL:
        model = make_model("matern ard", approximation=approximation)

        def moments(X, model=model):
            posterior = model.posterior(X)
            return posterior.mean, posterior.distribution.covariance_matrix

        assert torch.autograd.gradcheck(moments, (points(2, 2).requires_grad_(),))


# --- state -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def predict(model):
    posterior = model.posterior(points(4))
    return torch.cat([posterior.mean.squeeze(-1), posterior.variance.squeeze(-1)])


def rebuilt(model, X=None, y=None):
    """A model of the same parts, made anew."""
    parts = deepcopy((model.covar_module, model.likelihood, model.mean_module))
    data = (model.train_X, model.train_y) if X is None else (X, y)
    return SparseGP(*data, model.knots, *parts, approximation=model.approximation, nugget=model.nugget)


def take_a_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    (-model.objective()).backward()
    optimizer.step()


CHANGES = [
    lambda model: model.knots.detach().add_(0.05),  # in place
    lambda model: setattr(model, "knots", torch.nn.Parameter(model.knots.detach() + 0.05)),
    lambda model: setattr(model.likelihood, "noise", 0.5),  # GPyTorch's setters write to .data
    lambda model: setattr(model.covar_module.base_kernel, "lengthscale", 0.2),
    lambda model: setattr(model, "covar_module", ScaleKernel(MaternKernel(nu=0.5)).double()),
    lambda model: model.mean_module.initialize(constant=-4.0),
    lambda model: setattr(model, "approximation", VFE),
    lambda model: setattr(model, "nugget", 0.1),
    lambda model: fit_sparse(model, max_iterations=3),
    take_a_step,
]


def test_predictions_follow_every_change():
    for change in CHANGES:
        model = make_model(approximation=FITC)
        before = predict(model)
        change(model)
        after = predict(rebuilt(model))
        assert torch.allclose(predict(model), after, rtol=1e-12, atol=1e-12)
        assert not torch.allclose(after, before, rtol=1e-6)


def test_conditioning_is_a_model_of_all_rows():
    X, y = rows(9, seed=6)
    for approximation in ALL:
        model = make_model(approximation=approximation)
        before = predict(model)
        other = model.condition_on_observations(X, y[:, None])
        fresh = rebuilt(model, torch.cat([model.train_X, X]), torch.cat([model.train_y, y]))
        assert torch.allclose(predict(other), predict(fresh), rtol=1e-12, atol=1e-12)
        assert torch.allclose(other.objective(), fresh.objective())
        twice = model.condition_on_observations(X[:4], y[:4, None]).condition_on_observations(X[4:], y[4:, None])
        assert torch.allclose(predict(twice), predict(other), rtol=1e-9)
        assert torch.equal(predict(model), before)
        assert len(model.train_y) == 40


# --- objective and fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_in_coordinates_by_finite_differences(kernel):
    for knots, approximation in ((None, VFE), (slice(2, 3), FITC), (slice(None), FITC)):
        model = make_model(kernel, mean=LinearMean(2), approximation=approximation)
        before, coordinates = deepcopy(model), Coordinates(model, knots)
        coordinates.write(coordinates.read())
        torch.testing.assert_close(model.state_dict(), before.state_dict(), rtol=0, atol=1e-12)
        start = coordinates.read() + 0.1
        _, gradient = coordinates.evaluate(start)
        torch.testing.assert_close(slopes(coordinates, start), gradient, rtol=1e-5, atol=1e-5)


def test_priors_are_in_the_objective(model):
    expected = value_of(model.objective())
    for module, name, prior in (
        (model.covar_module.base_kernel, "lengthscale", GammaPrior(3.0, 6.0)),
        (model.likelihood, "noise", GammaPrior(1.1, 0.05)),
        (model.mean_module, "constant", NormalPrior(0.0, 1.0)),
    ):
        module.register_prior(f"{name}_prior", prior, lambda module, name=name: getattr(module, name))
        expected += value_of(prior.log_prob(getattr(module, name)).sum())
    assert value_of(model.objective()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("approximation", "kernel"), list(zip(cycle([VFE, FITC]), KERNELS)), ids=name_of)
def test_fits_climb_to_a_stationary_point(kernel, approximation):
    model = make_model(kernel, approximation=approximation)
    before = value_of(model.objective())
    fit = fit_sparse(model, max_iterations=150)
    assert fit.objective == pytest.approx(value_of(model.objective()), rel=1e-9)
    assert fit.objective > before
    assert fit.num_evaluations >= 2
    coordinates = Coordinates(model)
    place, (low, high) = coordinates.read(), coordinates.bounds
    inside = (place > low + 1e-9) & (place < high - 1e-9)
    assert float((coordinates.evaluate(place)[1] * inside).abs().max()) < 0.3


def test_what_moves_is_chosen(model):
    def moved(**settings):
        start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        fit_sparse(model, max_iterations=5, **settings)
        return {name for name, parameter in model.named_parameters() if not torch.equal(parameter, start[name])}

    assert moved(knots=True, hyperparameters=False) == {"knots"}
    model.mean_module.requires_grad_(False)
    names = {name for name, _ in model.named_parameters()}
    assert moved() == names - {"knots", "mean_module.raw_constant"}
    with pytest.raises(ValueError, match="nothing to optimize"):
        fit_sparse(model, hyperparameters=False)
    with pytest.raises(ValueError, match="nothing to optimize"):
        Coordinates(model.requires_grad_(False))


def test_knots_and_scales_do_not_run_away():
    X, _ = rows()
    # Targets that are a plane: the bound rises for ever longer lengthscales and ever larger variances.
    model = SparseGP(X, X @ X.new_tensor([1.0, 2.0]), X[:8], ScaleKernel(RBFKernel()), GaussianLikelihood())
    kernel = model.covar_module
    start = [value_of(kernel.outputscale), value_of(kernel.base_kernel.lengthscale)]
    fit_sparse(model, knots=True, max_iterations=100)
    for before, after in zip(start, (kernel.outputscale, kernel.base_kernel.lengthscale), strict=True):
        assert before / 1.001e4 <= value_of(after) <= before * 1.001e4
    assert value_of(model.likelihood.noise) >= 1e-4  # the likelihood's own constraint
    low, high = X.amin(0), X.amax(0)
    margin = 0.1 * (high - low) * (1.0 + 1e-9)
    assert bool(((model.knots >= low - margin) & (model.knots <= high + margin)).all())
    assert bool(predict(model).isfinite().all())


def test_constrained_parameters_of_any_sign_are_fitted():
    X, y = rows()
    for target in (-2.0, 2.0):
        for start in (-0.5, 0.0, 0.5):
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


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError("full")], ids=["interrupted", "failed"])
def test_the_best_parameters_are_kept_on_failure(model, monkeypatch, error):
    before = value_of(model.objective())
    with monkeypatch.context() as patch:
        fail_at(patch, [SparseGP], "objective", range(9, 1000), error)
        with pytest.raises(type(error)):
            fit_sparse(model, knots=True)
    assert value_of(model.objective()) > before
    assert bool(predict(model).isfinite().all())


@pytest.mark.parametrize("fails", [(3,), (5, 9)])
def test_a_point_without_a_value_ends_no_fit(model, monkeypatch, fails):
    before = value_of(model.objective())
    with monkeypatch.context() as patch:
        fail_at(patch, [SparseGP], "objective", fails, NumericalError("a matrix is not positive definite"))
        fit = fit_sparse(model, knots=True)
    assert fit.objective == pytest.approx(value_of(model.objective()), rel=1e-12)
    assert fit.objective > before
    assert fit.num_evaluations > 9


def test_an_objective_without_a_value_at_the_start_is_refused():
    X, y = rows()
    for knots, targets in ((False, y * 1e200), (slice(1, 2), y.index_fill(0, torch.tensor([3]), torch.nan))):
        model = SparseGP(X, y, X[:4], ScaleKernel(RBFKernel()))
        model.train_y.copy_(targets)
        before = deepcopy(model.state_dict())
        with pytest.raises(NumericalError):
            fit_sparse(model, knots=knots)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


# --- input -----------------------------------------------------------------------------------------------------------

X0, Y0 = rows(10)
BAD_KNOTS = [
    (X0[:2, :1], r"knots must be \(K, 2\)"),
    (X0[:0], r"knots must be \(K, 2\)"),
    (X0[:2] * torch.nan, "knots must be finite"),
    (X0[:2].float(), r"knots must be \(K, 2\)"),
]
BAD = [
    *(((X0, Y0, knots), message) for knots, message in BAD_KNOTS),
    ((X0, Y0[:5], X0[:2]), "do not fit"),
    ((X0[:, 0], Y0, X0[:2]), "do not fit"),
    ((X0, X0, X0[:2]), "do not fit"),
    ((X0[:0], Y0[:0], X0[:2]), "do not fit"),
    ((X0.long(), Y0.long(), X0[:2]), "share a real dtype"),
    ((X0, Y0.float(), X0[:2]), "share a real dtype"),
    ((X0.index_fill(0, torch.tensor([3]), torch.nan), Y0, X0[:2]), r"inputs must be finite, but inputs\[3, 0\]"),
    ((X0, Y0.index_fill(0, torch.tensor([4]), torch.inf), X0[:2]), r"targets must be finite, but targets\[4, 0\]"),
    ((X0[:1].repeat(5, 1), Y0[:5], X0[:2]), r"2 knots are more than the 1 distinct row\(s\)"),
]


def test_bad_input_is_refused(model):
    kernel = ScaleKernel(RBFKernel()).double()
    for arguments, message in BAD:
        with pytest.raises(ValueError, match=message):
            SparseGP(*arguments, kernel)
    for nugget in (-1e-6, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="nugget"):
            SparseGP(X0, Y0, X0[:2], kernel, nugget=nugget)
    for knots, message in BAD_KNOTS:
        with pytest.raises(ValueError, match=message):
            model.with_knots(knots)
    for approximation in (None, "VFE"):
        with pytest.raises(TypeError, match="must be VFE, DTC, DIC, FITC or FIC"):
            SparseGP(X0, Y0, X0[:2], kernel, approximation=approximation)
    with pytest.raises(ValueError, match="must be a GaussianLikelihood"):
        SparseGP(X0, Y0, X0[:3], kernel, BernoulliLikelihood())
    with pytest.raises(ValueError, match="no batch"):
        SparseGP(X0, Y0, X0[:3], RBFKernel(batch_shape=torch.Size([2])))
    with pytest.raises(TypeError, match="torch tensor"):
        SparseGP(X0.numpy(), Y0, X0[:3], kernel)


def test_the_default_dtype_does_not_matter(wrong_default_dtype):
    model = SparseGP(X0, Y0, X0[:3], ScaleKernel(RBFKernel()))
    fit_sparse(model, knots=True, max_iterations=3)
    assert predict(model).dtype == torch.float64
    assert all(parameter.dtype == torch.float64 for parameter in model.parameters())


def test_gpytorchs_objective_is_this_one_by_row_and_botorch_fits_it():
    for approximation in (VFE, DTC, FITC):
        model = make_model(approximation=approximation).train()
        objective = ExactMarginalLogLikelihood(model.likelihood, model)
        value = objective(model(model.train_X), model.train_y)
        before = value_of(model.objective())
        assert value_of(value) * len(model.train_y) == pytest.approx(before, abs=1e-6)
        with pytest.raises(ValueError, match="only its training inputs"):
            model(model.train_X[:3])
        assert model.with_knots(model.knots).num_knots == model.num_knots  # the graph of the value is not copied
    fit_gpytorch_mll(objective)
    assert value_of(model.objective()) > before
