"""Knots one at a time: published paths of ADADELTA and of whole selections, proposals, optimizers and bad input."""

import itertools
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import GammaPrior

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.papers.sparse import (
    FITC,
    VFE,
    Adadelta,
    BayesianOptimization,
    OneAtATime,
    RandomSubset,
    SparseGP,
    select_knots,
)
from gp_ensembles.papers.sparse.collapsed import Approximation, PowerEP, TightVFE, log_density
from gp_ensembles.papers.sparse.fitting import Coordinates, FitResult
from gp_ensembles.papers.sparse.one_at_a_time import (
    CandidateObjectives,
    KnotProposal,
    ProposedRow,
    candidate_rows,
    log_expected_improvement,
    log_improvement,
)
from gp_ensembles.papers.sparse.optimizers import LBFGSB, KnotOptimizer

GOLDEN = Path(__file__).parents[2] / "golden"
FUDGE = 1e-4  # what the published code adds where it divides by distances from the edge of the box


def golden(name):
    with np.load(GOLDEN / f"knots_{name}.npz") as file:
        return {key: torch.as_tensor(file[key]) for key in file.files}


def select_one_at_a_time(X, y, kernel, likelihood=None, *, objective=None, generator=None, progress=False, **settings):
    strategy = OneAtATime(**settings)
    return select_knots(
        X, y, kernel, likelihood, strategy=strategy, approximation=objective, generator=generator, progress=progress
    )


class CodedVFE(Approximation):
    """VFE as published code has it: the nugget stands in the noise of the density, but not in that of the trace."""

    def __init__(self, nugget):
        self.nugget = nugget

    def penalty(self, projection):
        return (projection.prior - projection.explained).sum() / (2.0 * projection.noise)

    def diagonal(self, projection):
        return (projection.noise + self.nugget).expand_as(projection.residual)


class CodedAdadelta(KnotOptimizer):
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

        end = self.settings.maximize(function, start, weights=weights)
        function(end.point)
        self.steps.append(end.num_evaluations)
        return FitResult(end.value, end.num_evaluations, end.message)

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


class Replay(KnotProposal):
    """The best of given rows, one set after the other."""

    def __init__(self, rows):
        self.rows = iter(rows)

    def propose(self, model, *, generator=None):
        rows = next(self.rows)
        values = CandidateObjectives(model).at(rows)
        return ProposedRow(int(rows[values.argmax()]), float(values.max()), rows, values)


@pytest.fixture(name="absolute_nugget")
def _absolute_nugget(monkeypatch):
    monkeypatch.setattr(SparseGP, "nugget_variance", lambda self, own: own.new_tensor(1e-6))


def isotropic(scale, lengthscale, deviation):
    kernel = ScaleKernel(RBFKernel()).double()
    likelihood = GaussianLikelihood().double()
    kernel.outputscale, kernel.base_kernel.lengthscale, likelihood.noise = scale**2, lengthscale, deviation**2
    return kernel, likelihood


def theta(model):
    kernel = model.covar_module
    return torch.stack(
        [kernel.outputscale.sqrt(), kernel.base_kernel.lengthscale.squeeze(), model.likelihood.noise.sqrt().squeeze()]
    ).detach()


class Traced(SparseGP):
    """Not a class of the library: keeps where the objective was evaluated."""

    def objective(self):
        value = super().objective()
        self.trace.append((float(value.detach()), theta(self), self.knots.detach().clone()))
        return value


@pytest.mark.usefixtures("absolute_nugget")
@pytest.mark.parametrize("which", ["vfe", "fic"])
@pytest.mark.parametrize("moves", ["theta", "joint"])
def test_adadelta_follows_the_published_path(which, moves):
    g = golden("adadelta_paths")
    kernel, likelihood = isotropic(*g[f"{which}_theta_par"][0])
    model = Traced(
        g["X"],
        g["y"],
        g["Z"],
        kernel,
        likelihood,
        approximation=CodedVFE(float(g["delta"])) if which == "vfe" else FITC(),
    )
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


@pytest.mark.slow
@pytest.mark.usefixtures("absolute_nugget")
@pytest.mark.parametrize("name", ["oat_rs_vfe", "oat_rs_vfe_fixgrad"])
def test_selection_follows_the_published_run(name):
    g = golden("oat_paths")
    kernel, likelihood = isotropic(*g["theta0"])
    refit = CodedAdadelta(Adadelta(max_iterations=int(g["maxit"])), inverted="fixgrad" not in name)
    found = select_one_at_a_time(
        g["X"],
        g["y"],
        kernel,
        likelihood,
        proposal=Replay(g[f"{name}_candidates"]),
        objective=CodedVFE(float(g["delta"])),
        optimizer=refit,
        start=g["knots0"],
        max_knots=int(g["maxknot"]),
    )
    assert refit.steps == g[f"{name}_steps"].tolist()
    np.testing.assert_allclose([step.objective for step in found.history], g[f"{name}_obj"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(theta(found.model), g[f"{name}_theta"][-1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.knots, g[f"{name}_knots"], rtol=0, atol=1e-5)
    assert found.stop_reason == "there are 12 knots, the most allowed"


@pytest.mark.usefixtures("absolute_nugget")
def test_selection_by_fitc_stays_near_the_published_run():
    # no closer: a perturbation of 1e-14 grows to 1e-6 within one fit, because damping counts signs
    g = golden("oat_paths")
    kernel, likelihood = isotropic(*g["theta0"])
    found = select_one_at_a_time(
        g["X"],
        g["y"],
        kernel,
        likelihood,
        proposal=Replay(g["oat_rs_fic_candidates"]),
        objective=FITC(),
        optimizer=CodedAdadelta(Adadelta(max_iterations=int(g["maxit"]))),
        start=g["knots0"],
        max_knots=6,
    )
    np.testing.assert_allclose([step.objective for step in found.history], g["oat_rs_fic_obj"][:3], rtol=0, atol=0.1)


def test_surrogate_agrees_with_dense_algebra_and_with_the_published_run():
    g = golden("oat_paths")
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
    np.testing.assert_allclose(average, published[:, 0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(variance, published[:, 1], rtol=0, atol=1e-5)
    new = published[:, 1] > 1e-6
    np.testing.assert_allclose(gain[new], published[new, 2], rtol=0, atol=1e-5)

    scale = values.std()
    found = log_expected_improvement(seen, values, X[new], (float(deviation / scale), float(lengthscale))).exp() * scale
    _, _, gain = improvement(values.mean(), 1e-6 * deviation**2)
    np.testing.assert_allclose(found, gain[new], rtol=1e-6, atol=1e-9)


def waves(count=60, seed=0, columns=2):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(count, columns, generator=generator, dtype=torch.float64)
    noise = 0.1 * torch.randn(count, generator=generator, dtype=torch.float64)
    return X, torch.sin(6.0 * X).sum(-1) + noise


def sparse(count=60, knots=4, **settings):
    X, y = waves(count)
    kernel, likelihood = isotropic(1.2, 0.4, 0.2)
    return SparseGP(X, y, X[:knots] + 0.01, kernel, likelihood, **settings)


APPROXIMATIONS = [VFE(), TightVFE(), FITC(), PowerEP(0.5), CodedVFE(1e-6)]


def test_candidate_objectives_are_those_of_larger_models():
    for approximation in APPROXIMATIONS:
        model = sparse(approximation=approximation)
        rows = torch.tensor([3, 17, 40, 59])
        larger = [model.with_knots(torch.cat([model.knots, model.train_X[row][None]])).objective() for row in rows]
        found = CandidateObjectives(model).at(rows)
        np.testing.assert_allclose(found, torch.stack(larger).detach(), rtol=0, atol=1e-9)


def test_rows_that_are_knots_are_no_candidates():
    for approximation in APPROXIMATIONS:
        X, y = waves()
        X = torch.cat([X, X[:5]])
        kernel, likelihood = isotropic(1.2, 0.4, 0.2)
        model = SparseGP(
            X, torch.cat([y, y[:5]]), X[[2, 7]], kernel, likelihood, approximation=approximation, nugget=0.0
        )
        rows = candidate_rows(model)
        assert rows.tolist() == [row for row in range(60) if row not in (2, 7)]
        values = CandidateObjectives(model).at(torch.tensor([2, 62, 8]))
        assert values.isinf().tolist() == [True, True, False]


def test_registered_priors_count_in_candidate_objectives():
    X, y = waves()
    kernel = ScaleKernel(RBFKernel(), outputscale_prior=GammaPrior(3.0, 6.0)).double()
    model = SparseGP(X, y, X[:3], kernel, approximation=FITC())
    larger = model.with_knots(X[[0, 1, 2, 9]]).objective()
    assert abs(float(CandidateObjectives(model).at(torch.tensor([9])) - larger.detach())) < 1e-9


def test_gradients_in_coordinates_by_finite_differences():
    for ard in (False, True):
        for knot in (None, 2):
            X, y = waves()
            kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2 if ard else None)).double()
            model = SparseGP(X, y, X[:4], kernel, approximation=FITC())
            coordinates = Coordinates(model, None if knot is None else slice(knot, knot + 1))
            start = coordinates.read() + 0.1
            _, gradient = coordinates.evaluate(start)
            for i in range(len(start)):
                step = torch.zeros_like(start)
                step[i] = 1e-5
                slope = (coordinates.evaluate(start + step)[0] - coordinates.evaluate(start - step)[0]) / 2e-5
                assert abs(slope - float(gradient[i])) < 1e-5 * max(1.0, abs(slope))


def test_coordinates_come_back():
    model = sparse()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    coordinates = Coordinates(model, slice(1, 2))
    coordinates.write(coordinates.read())
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.detach(), before[name], rtol=0, atol=1e-12)


def test_a_constant_column_does_not_move():
    X, y = waves()
    X[:, 1] = 3.0
    model = SparseGP(X, y, X[:4], ScaleKernel(RBFKernel()))
    before = model.knots.detach().clone()
    Adadelta(max_iterations=20).optimize(model, slice(2, 3))
    assert (model.knots[2] == before[2]).tolist() == [False, True]


@pytest.mark.parametrize("refit", [LBFGSB(10), Adadelta(max_iterations=15)])
@pytest.mark.parametrize("approximation", [VFE(), FITC()])
def test_refits_leave_old_knots_and_report_where_they_ended(refit, approximation):
    model = sparse(approximation=approximation)
    before, value = model.knots.detach().clone(), float(model.objective().detach())
    fit = refit.optimize(model, slice(3, 4))
    moved = (model.knots.detach() != before).any(-1)
    assert moved.tolist() == [False, False, False, True]
    assert fit.objective == pytest.approx(float(model.objective().detach()), abs=1e-9)
    assert fit.objective > value


def test_refit_without_a_knot_leaves_all_of_them():
    for refit in (LBFGSB(5), Adadelta(max_iterations=5)):
        model = sparse()
        before = model.knots.detach().clone()
        refit.optimize(model)
        assert bool((model.knots == before).all())


def test_runaway_parameters_are_bounded():
    # pure noise with a strong slope of the objective: scales would leave towards zero or infinity
    X, _ = waves()
    y = torch.randn(60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model = SparseGP(X, y, X[:3], ScaleKernel(RBFKernel()))
    scale, lengthscale = model.covar_module.outputscale.item(), model.covar_module.base_kernel.lengthscale.item()
    coordinates = Coordinates(model, slice(0, 1))
    lower, upper = coordinates.bounds
    end = Adadelta(epsilon=10.0, tolerance=-1.0, max_iterations=80).maximize(
        coordinates.evaluate, coordinates.read(), weights=coordinates.weights, bounds=coordinates.bounds
    )
    assert bool((end.point >= lower).all() & (end.point <= upper).all())
    assert 1e-4 * 0.999 <= model.covar_module.outputscale.item() / scale <= 1e4 * 1.001
    assert 1e-4 * 0.999 <= model.covar_module.base_kernel.lengthscale.item() / lengthscale <= 1e4 * 1.001


def test_large_scales_do_not_lead_to_noise_alone():
    # with few knots, taking everything for noise is an optimum as well; a step in other than logs ends there
    X, y = waves(200, columns=5)
    kernel, likelihood = isotropic(5.0, 1.0, 5.0)
    found = select_one_at_a_time(
        6.0 * X, 7.0 * y, kernel, likelihood, max_knots=8, generator=torch.Generator().manual_seed(0)
    )
    assert found.model.num_knots == 8
    assert found.model.likelihood.noise.item() < 0.7 * float((7.0 * y).var())


def test_refit_that_cannot_start_says_so_and_changes_nothing():
    model = sparse()
    model.train_y[3] = torch.nan
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(NumericalError):
        LBFGSB().optimize(model, slice(1, 2))
    for parameter, value in zip(model.parameters(), before, strict=True):
        np.testing.assert_allclose(parameter.detach(), value, rtol=0, atol=1e-12)


def test_adadelta_stops_before_a_point_that_cannot_be_evaluated():
    def function(point):
        if float(point) > 0.5:
            raise NumericalError("too far")
        return float(point), torch.ones_like(point)

    start = torch.zeros(1, dtype=torch.float64)
    end = Adadelta(tolerance=-1.0).maximize(function, start, weights=start)
    assert 0.0 < end.value == float(end.point) <= 0.5
    assert "too far" in end.message


PROPOSALS = {"subset": RandomSubset(8), "all": RandomSubset(None), "optimization": BayesianOptimization(3, 6)}


def test_proposals():
    for approximation in (VFE(), FITC()):
        for proposal in PROPOSALS.values():
            model = sparse(approximation=approximation)
            found = [proposal.propose(model, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
            assert found[0].evaluated.tolist() == found[1].evaluated.tolist()  # the generator's alone
            assert len(set(found[0].evaluated.tolist())) == len(found[0].evaluated)
            truth = CandidateObjectives(model).at(found[0].evaluated)
            np.testing.assert_allclose(found[0].objectives, truth, rtol=0, atol=1e-9)
            assert found[0].objective == pytest.approx(float(truth.max()), abs=1e-9)
            assert found[0].row == int(found[0].evaluated[truth.argmax()])


def test_bayesian_optimization_beats_random_search_of_the_same_size():
    model = sparse(200, 3, approximation=FITC())
    seeds = range(8)
    found = [
        [proposal.propose(model, generator=torch.Generator().manual_seed(seed)).objective for seed in seeds]
        for proposal in (BayesianOptimization(4, 12), RandomSubset(12))
    ]
    assert np.median(found[0]) > np.median(found[1])


def test_all_rows_are_evaluated_where_that_is_cheap():
    """Exact gains of all rows cost less than a search; other objectives are searched."""
    exact, searched = (BayesianOptimization(3, 6).propose(sparse(approximation=one)) for one in (VFE(), FITC()))
    assert len(exact.evaluated) == 60
    assert exact.objective == pytest.approx(float(CandidateObjectives(sparse()).at(torch.arange(60)).max()))
    assert len(searched.evaluated) == 6


def test_the_published_search_evaluates_as_many_rows_as_it_says():
    model = sparse()
    found = BayesianOptimization(3, 6, all_if_cheap=False).propose(model)
    assert found.evaluated.shape == (6,)
    np.testing.assert_allclose(found.objectives, CandidateObjectives(model).at(found.evaluated), rtol=0, atol=1e-9)


def test_the_logarithm_of_the_improvement_far_out():
    u = torch.tensor([-2e3, -30.0, -5.0, -1.0001, -0.9999, 0.0, 3.0], dtype=torch.float64)
    found = log_improvement(u).tolist()
    assert found[0] == pytest.approx(-0.5 * 2e3**2 - 0.5 * math.log(2 * math.pi) - 2.0 * math.log(2e3))
    for value, place in zip(found[1:], u[1:].tolist(), strict=True):
        with mpmath.workdps(60):
            exact = mpmath.log(mpmath.npdf(place) + place * mpmath.ncdf(place))
        assert value == pytest.approx(float(exact), rel=1e-9)


def test_no_proposal_where_every_row_is_a_knot():
    X = torch.tensor([[0.0], [1.0], [1.0]], dtype=torch.float64)
    model = SparseGP(X, X.squeeze(-1), X[:2], RBFKernel())
    assert RandomSubset().propose(model) is None
    assert BayesianOptimization().propose(model) is None


@pytest.mark.slow
@pytest.mark.parametrize("proposal", [RandomSubset(10), BayesianOptimization(3, 6)])
@pytest.mark.parametrize("objective", [VFE(), FITC()])
@pytest.mark.parametrize("optimizer", [LBFGSB(10), Adadelta(max_iterations=20)])
def test_selection_grows_and_every_knot_adds(proposal, objective, optimizer):
    X, y = waves()
    kernel, likelihood = isotropic(1.0, 0.4, 0.5)
    found = select_one_at_a_time(
        X,
        y,
        kernel,
        likelihood,
        proposal=proposal,
        objective=objective,
        optimizer=optimizer,
        start=3,
        max_knots=7,
        tolerance=0.01,
        generator=torch.Generator().manual_seed(0),
    )
    values = [step.objective for step in found.history]
    assert all(after - before > 0.01 for before, after in itertools.pairwise(values))
    assert [step.num_knots for step in found.history] == list(range(3, 3 + len(values)))
    assert values[-1] == pytest.approx(float(found.model.objective().detach()), abs=1e-9)
    assert [len(step.rows) for step in found.history] == [0] + [1] * (len(values) - 1)
    assert bool((found.knots == found.model.knots).all())
    assert float(found.model.mean_module.constant.detach()) == pytest.approx(float(y.mean()))
    assert found.model.mean_module.raw_constant.requires_grad  # it was held only while knots were chosen
    assert kernel.outputscale.item() == pytest.approx(1.0)  # the caller's kernel is as it was
    if objective.__class__ is VFE:
        assert values[-1] <= found.history[-1].upper_bound


def test_selection_stops_at_the_first_knot_that_adds_too_little():
    X, y = waves()
    kernel, likelihood = isotropic(1.0, 0.4, 0.5)
    found = select_one_at_a_time(X, y, kernel, likelihood, tolerance=1e6)
    assert found.model.num_knots == 5
    assert found.stop_reason == "another knot added no more than 1000000.0 nats"
    assert [step.action for step in found.history] == ["start"]


class Interrupting(KnotProposal):
    def __init__(self, after):
        self.left = after

    def propose(self, model, *, generator=None):
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return RandomSubset(10).propose(model, generator=generator)


def test_interruption_keeps_the_best_model():
    X, y = waves()
    kernel, likelihood = isotropic(1.0, 0.4, 0.5)
    with pytest.warns(UserWarning, match="interrupted with 7 knots"):
        found = select_one_at_a_time(X, y, kernel, likelihood, proposal=Interrupting(2))
    assert found.stop_reason == "interrupted"
    assert found.knots.shape == (7, 2)
    assert float(found.model.objective().detach()) == pytest.approx(found.history[-1].objective, abs=1e-9)


def test_interrupted_refit_leaves_the_model_before_it(monkeypatch):
    X, y = waves()
    kernel, likelihood = isotropic(1.0, 0.4, 0.5)
    calls = []
    original = SparseGP.objective

    def objective(self):
        calls.append(self.num_knots)
        if self.num_knots == 6 and calls.count(6) == 4:
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(SparseGP, "objective", objective)
    with pytest.warns(UserWarning, match="interrupted with 5 knots"):
        found = select_one_at_a_time(X, y, kernel, likelihood)
    assert float(original(found.model).detach()) == pytest.approx(found.history[-1].objective, abs=1e-9)


def test_duplicates_are_one_row_each_and_all_rows_are_enough():
    X, y = waves(6)
    kernel, likelihood = isotropic(1.0, 0.4, 0.1)
    found = select_one_at_a_time(X.repeat(3, 1), y.repeat(3), kernel, likelihood, start=2, tolerance=-1e6)
    assert found.model.num_knots == 6
    assert found.stop_reason == "all 6 distinct rows have a knot"


def test_bad_input():
    for change, message in [
        ({"y": torch.ones(60, dtype=torch.float64)}, "constant"),
        ({"y": torch.full((60,), torch.nan, dtype=torch.float64)}, "finite"),
        ({"start": 0}, "a first knot"),
        ({"start": 9, "max_knots": 8}, "no more than 8"),
        ({"start": torch.zeros(2, 3, dtype=torch.float64)}, "knots must be"),
    ]:
        X, y = waves()
        kernel, likelihood = isotropic(1.0, 0.4, 0.5)
        arguments = {"X": X, "y": y, "kernel": kernel, "likelihood": likelihood} | change
        with pytest.raises(ValueError, match=message):
            select_one_at_a_time(**arguments)


def test_bad_settings():
    for build in [
        lambda: RandomSubset(0),
        lambda: BayesianOptimization(1, 5),
        lambda: BayesianOptimization(6, 5),
        lambda: LBFGSB(0),
    ]:
        with pytest.raises(ValueError):
            build()


def test_nothing_to_move():
    model = sparse()
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing is to move"):
        Coordinates(model)


def test_any_kernel():
    X, y = waves(columns=1)
    kernel = ScaleKernel(PeriodicKernel() * RBFKernel()).double()
    found = select_one_at_a_time(X, y, kernel, start=2, max_knots=4, optimizer=LBFGSB(3))
    assert found.history[-1].objective > found.history[0].objective


@pytest.mark.usefixtures("wrong_default_dtype")
def test_default_dtype_does_not_matter():
    X, y = waves()
    kernel, likelihood = isotropic(1.0, 0.4, 0.5)
    proposal = BayesianOptimization(2, 4)
    found = select_one_at_a_time(X, y, kernel, likelihood, proposal=proposal, max_knots=6)
    assert found.knots.dtype == torch.float64
