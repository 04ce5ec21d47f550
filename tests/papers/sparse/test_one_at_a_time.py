"""Knots one at a time: published paths of ADADELTA and of whole selections, proposals, optimizers and bad input."""

import math

import mpmath
import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.papers.sparse import FITC, VFE, Adadelta, OneAtATime, SparseGP, select_knots
from gp_ensembles.papers.sparse import one_at_a_time as module
from gp_ensembles.papers.sparse.collapsed import log_density
from gp_ensembles.papers.sparse.fitting import Coordinates
from gp_ensembles.papers.sparse.one_at_a_time import BayesianOptimization, RandomSubset, candidate_objectives
from gp_ensembles.papers.sparse.strategies import LBFGSB
from tests.papers.sparse.problems import CodedVFE, isotropic, read_golden, rows, value_of

FUDGE = 1e-4  # what the published code adds where it divides by distances from the edge of the box


def sparse(count=60, knots=4, **settings):
    X, y = rows(count)
    return SparseGP(X, y, X[:knots] + 0.01, *isotropic(1.44, 0.4, 0.04), **settings)


def select(X=None, y=None, kernel=None, likelihood=None, *, objective=VFE, seed=None, **settings):
    """A selection one at a time, of smooth targets and with an isotropic kernel unless others are given."""
    X, y = rows(60) if X is None else (X, y)
    kernel, likelihood = isotropic(1.0, 0.4, 0.25) if kernel is None else (kernel, likelihood)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    strategy = OneAtATime(**settings)
    return select_knots(X, y, kernel, likelihood, strategy=strategy, approximation=objective, generator=generator)


class CodedAdadelta:
    """ADADELTA with the published code's slips.

    The chain factor of the knot is inverted (unless ``inverted`` is false), all knots drift towards the center of
    their box at each refit, and the gradient of the noise is wrong where a knot stands on a row.
    """

    def __init__(self, settings, inverted=True, on_rows=True):
        self.settings, self.inverted, self.on_rows, self.steps = settings, inverted, on_rows, []

    def optimize(self, model, knots=None):
        knot = None if knots is None else knots.start
        scales = Coordinates(model)
        start, weights = scales.read(), scales.weights
        size = len(start)
        function = scales.evaluate
        if knot is not None:
            spread = model.train_X.amax(0) - model.train_X.amin(0)
            low, high = model.train_X.amin(0) - 0.1 * spread, model.train_X.amax(0) + 0.1 * spread
            original = model.knots.detach().clone()
            logits = torch.log((original - low + FUDGE) / (high - original + FUDGE))
            start = torch.cat([start, logits[knot]])
            weights = torch.cat([weights, torch.ones_like(logits[knot])])

            def function(point):
                first = bool((point == start).all())
                moved = logits.clone()
                moved[knot] = point[size:]
                model.knots.data = original if first else low + (high - low) * moved.sigmoid()
                value, slope = scales.evaluate(point[:size])
                (gradient,) = torch.autograd.grad(model.objective(), model.knots)
                z = model.knots[knot].detach()
                product = (z - low) * (high - z)
                factor = (high - low) / (product + FUDGE) if self.inverted else product / (high - low)
                if first and self.on_rows:
                    slope = slope + self.slip(model, knot)
                return value, torch.cat([slope, gradient[knot] * factor])

        end, result = self.settings.maximize(function, start, weights=weights)
        function(end)
        self.steps.append(result.num_evaluations)
        return result

    def slip(self, model, knot):
        """Twice the noise, times the density's derivative by the covariance of the knot and the row it stands on."""
        projection = model.projection()
        cross = model.kernel_matrix(model.knots, model.train_X).detach().requires_grad_()
        projected = torch.linalg.solve_triangular(projection.lower, cross, upper=False)
        # only the density has it, not the trace
        density = log_density(projection._replace(projected=projected), model.approximation.diagonal(projection))
        (slope,) = torch.autograd.grad(density, cross)
        same = (model.train_X == model.knots[knot]).all(-1)
        moving = (name for name, part, _ in model.named_parameters_and_constraints() if part.requires_grad)
        noise = torch.tensor([name.endswith("raw_noise") for name in moving if name != "knots"])
        return noise * 2.0 * float(projection.noise.detach()) * slope[knot][same].sum()


class Replay:
    """The best of given rows, one set after the other."""

    def __init__(self, rows):
        self.rows = iter(rows)

    def propose(self, model, *, generator=None):
        rows = next(self.rows)
        return rows, candidate_objectives(model)(rows)


@pytest.fixture(name="absolute_nugget")
def _absolute_nugget(monkeypatch):
    monkeypatch.setattr(SparseGP, "nugget_variance", lambda self, own: own.new_tensor(1e-6))


def at(theta):
    scale, lengthscale, deviation = theta
    return isotropic(scale**2, lengthscale, deviation**2)


def theta(model):
    kernel, noise = model.covar_module, model.likelihood.noise
    parts = (kernel.outputscale.sqrt(), kernel.base_kernel.lengthscale, noise.sqrt())
    return torch.cat([part.reshape(1) for part in parts]).detach()


class Traced(SparseGP):
    """Not a class of the library: keeps where the objective was evaluated."""

    def objective(self):
        value = super().objective()
        self.trace.append((value_of(value), theta(self), self.knots.detach().clone()))
        return value


@pytest.mark.usefixtures("absolute_nugget")
@pytest.mark.parametrize("which", ["vfe", "fic"])
@pytest.mark.parametrize("moves", ["theta", "joint"])
def test_adadelta_follows_the_published_path(which, moves):
    g = read_golden("adadelta_paths")
    approximation = CodedVFE(float(g["delta"])) if which == "vfe" else FITC
    model = Traced(g["X"], g["y"], g["Z"], *at(g[f"{which}_theta_par"][0]), approximation=approximation)
    model.mean_module.constant.data.fill_(float(g["mean"]))
    model.mean_module.requires_grad_(False)
    model.trace = []
    settings = Adadelta(tolerance=-1.0, max_iterations=60)
    if moves == "theta":
        settings.optimize(model)
    else:
        CodedAdadelta(settings, on_rows=False).optimize(model, slice(model.num_knots - 1, None))
        model.trace = model.trace[::2]  # each point twice: for hyperparameters and for the knots
    values, thetas, knots = (list(part) for part in zip(*model.trace[:60], strict=True))
    np.testing.assert_allclose(values, g[f"{which}_{moves}_obj"], rtol=0, atol=1e-8)
    np.testing.assert_allclose(torch.stack(thetas), g[f"{which}_{moves}_par"], rtol=0, atol=1e-8)
    if moves == "joint":
        np.testing.assert_allclose(torch.stack(knots), g[f"{which}_joint_knots"], rtol=0, atol=1e-8)


def published_run(g, name, objective, most):
    refit = CodedAdadelta(Adadelta(max_iterations=int(g["maxit"])), inverted="fixgrad" not in name)
    settings = {"proposal": Replay(g[f"{name}_candidates"]), "optimizer": refit, "start": g["knots0"]}
    found = select(g["X"], g["y"], *at(g["theta0"]), objective=objective, max_knots=most, **settings)
    return found, [step.objective for step in found.history], refit.steps


@pytest.mark.slow
@pytest.mark.usefixtures("absolute_nugget")
@pytest.mark.parametrize("name", ["oat_rs_vfe", "oat_rs_vfe_fixgrad"])
def test_selection_follows_the_published_run(name):
    g = read_golden("oat_paths")
    found, objectives, steps = published_run(g, name, CodedVFE(float(g["delta"])), int(g["maxknot"]))
    assert steps == g[f"{name}_steps"].tolist()
    np.testing.assert_allclose(objectives, g[f"{name}_obj"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(theta(found.model), g[f"{name}_theta"][-1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.knots, g[f"{name}_knots"], rtol=0, atol=1e-5)
    assert found.stop_reason == "there are 12 knots, the most allowed"


@pytest.mark.usefixtures("absolute_nugget")
def test_selection_by_fitc_stays_near_the_published_run():
    # no closer: a perturbation of 1e-14 grows to 1e-6 within one fit, because damping counts signs
    g = read_golden("oat_paths")
    _, objectives, _ = published_run(g, "oat_rs_fic", FITC, 6)
    np.testing.assert_allclose(objectives, g["oat_rs_fic_obj"][:3], rtol=0, atol=0.1)


def test_surrogate_agrees_with_dense_algebra_and_with_the_published_run():
    g = read_golden("oat_paths")
    X, seen, values = g["X"], g["oat_bo_vfe_bo6_x"], g["oat_bo_vfe_bo6_val"]
    _, deviation, lengthscale, *_ = g["oat_bo_vfe_bo_log"][5].tolist()

    def covariance(first, second):
        return deviation**2 * torch.exp(-(first[:, None] - second[None]).abs().sum(-1) / lengthscale)

    def improvement(mean, nugget):
        own = covariance(seen, seen) + nugget * torch.diag_embed(torch.ones_like(values))
        weights = torch.linalg.solve(own, covariance(seen, X)).mT
        average = mean + weights @ (values - mean)
        variance = deviation**2 - (weights * covariance(seen, X).mT).sum(-1)
        spread = variance.clamp_min(0.0).sqrt()
        normal = torch.distributions.Normal(torch.zeros_like(spread), torch.ones_like(spread))
        u = (average - values.max()) / spread
        gain = spread * (u * normal.cdf(u) + normal.log_prob(u).exp())
        return average, variance, torch.where(variance > 1e-7, gain, 0.0)

    average, variance, gain = improvement(values[0], 1e-9)
    published = g["oat_bo_vfe_bo6_mean_var_ei"]
    np.testing.assert_allclose(torch.stack([average, variance]), published.mT[:2], rtol=0, atol=1e-5)
    new = published[:, 1] > 1e-6
    np.testing.assert_allclose(gain[new], published[new, 2], rtol=0, atol=1e-5)

    scale = values.std()
    hyperparameters = float(deviation / scale), float(lengthscale)
    found = module.log_expected_improvement(seen, values, X[new], hyperparameters).exp() * scale
    _, _, gain = improvement(values.mean(), 1e-6 * deviation**2)
    np.testing.assert_allclose(found, gain[new], rtol=1e-6, atol=1e-9)


def test_the_surrogates_lengthscale_is_the_likeliest():
    X = torch.linspace(0.0, 1.0, 15, dtype=torch.float64).unsqueeze(-1)
    values, candidates = torch.sin(4.0 * X[:, 0]), X[:-1] + 0.02
    known = (values - values.mean()) / values.std()

    def law(lengthscale):
        own = torch.exp(-torch.cdist(X, X) / lengthscale) + 1e-6 * torch.diag_embed(torch.ones_like(known))
        variance = (known @ torch.linalg.solve(own, known)) / len(X)
        return float(-0.5 * len(X) * variance.log() - 0.5 * torch.logdet(own)), float(variance.sqrt()), lengthscale

    _, deviation, lengthscale = max(map(law, torch.logspace(-2, 1, 100, dtype=torch.float64).tolist()))
    found = module.log_expected_improvement(X, values, candidates)
    wanted = module.log_expected_improvement(X, values, candidates, (deviation, lengthscale))
    np.testing.assert_allclose(found, wanted, rtol=0.05)


def test_candidate_objectives_are_those_of_larger_models():
    for approximation in [VFE, FITC, CodedVFE(1e-6)]:
        model, places = sparse(approximation=approximation), torch.tensor([3, 17, 40, 59])
        model.likelihood.register_prior("noise_prior", GammaPrior(3.0, 6.0), "noise")  # which counts, too
        larger = [model.with_knots(torch.cat([model.knots, model.train_X[row][None]])).objective() for row in places]
        found = candidate_objectives(model)(places)
        np.testing.assert_allclose(found, torch.stack(larger).detach(), rtol=0, atol=1e-9)

        X, y = (torch.cat([part, part[:5]]) for part in rows(60))
        model = SparseGP(X, y, X[[2, 7]], *isotropic(1.44, 0.4, 0.04), approximation=approximation, nugget=0.0)
        assert module.candidate_rows(model).tolist() == [row for row in range(60) if row not in (2, 7)]
        values = candidate_objectives(model)(torch.tensor([2, 62, 8]))
        assert values.isinf().tolist() == [True, True, False]


def test_a_constant_column_does_not_move():
    X, y = rows(60)
    X[:, 1] = 3.0
    model = SparseGP(X, y, X[:4], ScaleKernel(RBFKernel()))
    before = model.knots.detach().clone()
    Adadelta(max_iterations=20).optimize(model, slice(2, 3))
    assert (model.knots[2] == before[2]).tolist() == [False, True]


@pytest.mark.parametrize("refit", [LBFGSB(10), Adadelta(max_iterations=15)])
@pytest.mark.parametrize("approximation", [VFE, FITC])
def test_refits_leave_other_knots_and_report_where_they_ended(refit, approximation):
    for moving in (None, slice(3, 4)):
        model = sparse(approximation=approximation)
        before, value = model.knots.detach().clone(), value_of(model.objective())
        fit = refit.optimize(model, moving)
        moved = (model.knots.detach() != before).any(-1)
        assert moved.tolist() == [False, False, False, moving is not None]
        assert fit.objective == pytest.approx(value_of(model.objective()), abs=1e-9)
        assert fit.objective > value


def test_runaway_parameters_are_bounded():
    # pure noise with a strong slope of the objective: scales would leave towards zero or infinity
    X, _ = rows(60)
    y = torch.randn(60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model = SparseGP(X, y, X[:3], ScaleKernel(RBFKernel()))
    coordinates = Coordinates(model, slice(0, 1))
    Adadelta(epsilon=10.0, tolerance=-1.0, max_iterations=80).optimize(model, slice(0, 1))
    (lower, upper), end = coordinates.bounds, coordinates.read()
    assert bool(((end >= lower - 1e-9) & (end <= upper + 1e-9)).all())


def test_large_scales_do_not_lead_to_noise_alone(generator):
    # with few knots, taking everything for noise is an optimum as well; a step in other than logs ends there
    X = torch.rand(200, 5, generator=generator, dtype=torch.float64)
    y = torch.sin(6.0 * X).sum(-1) + 0.1 * torch.randn(200, generator=generator)
    found = select(6.0 * X, 7.0 * y, *isotropic(25.0, 1.0, 25.0), max_knots=8, seed=0)
    assert found.model.num_knots == 8
    assert found.model.likelihood.noise.item() < 0.7 * float((7.0 * y).var())


def test_adadelta_stops_at_its_bounds_and_before_a_point_that_cannot_be_evaluated():
    def function(point):
        if float(point) > 0.5:
            raise NumericalError("too far")
        return float(point), torch.ones_like(point)

    start = torch.zeros(1, dtype=torch.float64)
    end, result = Adadelta(tolerance=-1.0).maximize(function, start, weights=start)
    assert 0.0 < result.objective == float(end) <= 0.5
    assert "too far" in result.message
    far, bounds = Adadelta(epsilon=10.0, tolerance=-1.0), (start, start + 0.3)
    end, result = far.maximize(function, start, weights=start, bounds=bounds)
    assert result.objective == float(end) == 0.3


def test_proposals():
    for approximation in (VFE, FITC):
        for proposal in (RandomSubset(8), RandomSubset(None), BayesianOptimization(3, 6)):
            model = sparse(approximation=approximation)
            found, again = (proposal.propose(model, generator=torch.Generator().manual_seed(3)) for _ in range(2))
            assert found[0].tolist() == again[0].tolist()  # the generator's alone
            assert len(set(found[0].tolist())) == len(found[0])
            np.testing.assert_allclose(found[1], candidate_objectives(model)(found[0]), rtol=0, atol=1e-9)


def test_bayesian_optimization_beats_random_search_of_the_same_size():
    model = sparse(200, 3, approximation=FITC)
    found = [
        [proposal.propose(model, generator=torch.Generator().manual_seed(seed))[1].max() for seed in range(8)]
        for proposal in (BayesianOptimization(4, 12), RandomSubset(12))
    ]
    assert np.median(found[0]) > np.median(found[1])


def test_all_rows_are_evaluated_where_that_is_cheap():
    """Exact gains of all rows cost less than a search; other objectives are searched, and so is the published one."""
    exact, searched = (BayesianOptimization(3, 6).propose(sparse(approximation=one)) for one in (VFE, FITC))
    published = BayesianOptimization(3, 6, all_if_cheap=False).propose(sparse())
    assert [len(rows) for rows, _ in (exact, searched, published)] == [60, 6, 6]
    every = candidate_objectives(sparse())(torch.arange(60))
    assert float(exact[1].max()) == pytest.approx(float(every.max()))
    np.testing.assert_allclose(published[1], every[published[0]], rtol=0, atol=1e-9)


def test_the_logarithm_of_the_improvement_far_out():
    u = torch.tensor([-2e3, -30.0, -5.0, -1.0001, -0.9999, 0.0, 3.0], dtype=torch.float64)
    found = module.log_improvement(u).tolist()
    assert found[0] == pytest.approx(-0.5 * 2e3**2 - 0.5 * math.log(2 * math.pi) - 2.0 * math.log(2e3))
    for value, place in zip(found[1:], u[1:].tolist(), strict=True):
        with mpmath.workdps(60):
            exact = mpmath.log(mpmath.npdf(place) + place * mpmath.ncdf(place))
        assert value == pytest.approx(float(exact), rel=1e-9)


def test_no_proposal_where_every_row_is_a_knot():
    X = torch.tensor([[0.0], [1.0], [1.0]], dtype=torch.float64)
    model = SparseGP(X, X.squeeze(-1), X[:2], RBFKernel())
    assert not any(len(one.propose(model)[0]) for one in (RandomSubset(), BayesianOptimization()))


def test_selection_stops_at_the_first_knot_that_adds_too_little():
    found = select(tolerance=1e6)
    assert found.model.num_knots == 5
    assert found.stop_reason == "another knot added no more than 1000000.0 nats"
    assert [step.action for step in found.history] == ["start"]


def test_duplicates_are_one_row_each_and_all_rows_are_enough():
    X, y = rows(6)
    found = select(X.repeat(3, 1), y.repeat(3), *isotropic(1.0, 0.4, 0.01), start=2, tolerance=-1e6)
    assert found.model.num_knots == 6
    assert found.stop_reason == "all 6 distinct rows have a knot"


def test_bad_input():
    for settings, message in [
        ({"start": 0}, "between 1 and"),
        ({"start": 9, "max_knots": 8}, "between 1 and 8, got 9"),
        ({"start": torch.zeros(2, 3, dtype=torch.float64)}, "knots must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            select(**settings)
    for build, *numbers in [(RandomSubset, 0), (BayesianOptimization, 1, 5), (BayesianOptimization, 6, 5), (LBFGSB, 0)]:
        with pytest.raises(ValueError, match="at least"):
            build(*numbers)
