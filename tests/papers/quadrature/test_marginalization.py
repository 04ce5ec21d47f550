"""The loop: budgets, seeds, checkpoints, interruptions, failed likelihoods, progress."""

import itertools
import math

import pytest
import torch

from gp_ensembles.papers.quadrature import Budget, PriorPolicy, RegressionProblem, Search, marginalization, marginalize
from gp_ensembles.papers.quadrature.likelihoods import DenseLikelihood
from gp_ensembles.papers.quadrature.policies import AcquisitionOptimizer, InformationPolicy, UncertaintyPolicy
from gp_ensembles.papers.quadrature.prior import inferred
from gp_ensembles.papers.quadrature.search import evaluate_draws, init_search, prior_covers_likelihood
from tests.papers.quadrature import cases
from tests.papers.quadrature.cases import Failing, seeded, tensor

pytestmark = pytest.mark.usefixtures("few_nodes")
QUICK = AcquisitionOptimizer(raw_samples=2, max_iterations=1, num_sizes=1)
INFORMATION = Search(
    InformationPolicy(QUICK, num_nodes=8), batch_size=3, ascent_evaluations=7, coverage_threshold=1.1
)  # ascents in every round
DRAWS = Search(PriorPolicy(), num_ascents=0, use_periodogram=False)


def prior_of(max_components=2, noise=(1e-2, 1.0), scale=0.6):
    return cases.prior_of(max_components, noise=inferred(*noise), scale=scale)


def problem_of(num_rows=25, prior=None, frequency=1.7):
    """A clear oscillation: draws of the prior miss the likelihood's mass, so there are ascents."""
    X = torch.linspace(0.0, 6.0, num_rows, dtype=torch.float64).unsqueeze(-1)
    y = torch.sin(2 * torch.pi * frequency * X.squeeze(-1)) + 0.2 * X.squeeze(-1)
    return RegressionProblem(X, y, prior_of() if prior is None else prior)


def run(problem, budget=30, search=INFORMATION, seed=0, **choices):
    budget = Budget(budget, draws=0) if isinstance(budget, int) else budget
    return marginalize(problem, budget, search, generator=seeded(seed), **choices)


def assert_same(first, second):
    """Bit for bit, what there is to know but the time it took."""
    for name in ("evaluations", "origins", "random", "ascents", "nodes_seed"):
        one, other = getattr(first.state, name), getattr(second.state, name)
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    for name in ("log_evidence", "log_evidence_sd", "posterior_components", "log_weights"):
        torch.testing.assert_close(getattr(first, name), getattr(second, name), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(first.quadrature.root_weights, second.quadrature.root_weights)


SEARCHES = {
    "information": INFORMATION,
    "uncertainty": Search(UncertaintyPolicy(QUICK), ascent_evaluations=4, batch_size=3, coverage_threshold=1.1),
    "prior": DRAWS,
    "prior with ascents": Search(PriorPolicy(), coverage_threshold=1.1, num_ascents=2, ascent_evaluations=3),
    "one at a time": Search(PriorPolicy(), batch_size=1, initial_share=0.8),
}
every_search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)


@pytest.mark.parametrize(
    ("name", "evaluations"),
    [("information", 16), ("uncertainty", 6), ("prior", 5), ("prior with ascents", 23), ("one at a time", 17)],
)
def test_exactly_the_budget_is_spent(name, evaluations):
    problem = problem_of()
    found = run(problem, evaluations, SEARCHES[name])
    assert found.num_evaluations == evaluations == found.state.evaluations.cube.shape[0]
    assert found.history[-1].evaluations == evaluations
    assert found.num_failed == 0
    cube, values = found.state.evaluations
    assert bool(((cube >= problem.prior.bounds[0]) & (cube <= problem.prior.bounds[1])).all())
    torch.testing.assert_close(problem.evaluate(cube), values, rtol=1e-7, atol=1e-7)
    assert set(found.seconds) == {"likelihoods", "ascents", "surrogate", "policy", "importance"}
    assert all(seconds >= 0 for seconds in found.seconds.values())


class Slow(DenseLikelihood):
    """Every kernel takes a 64th of a second on a clock that nothing else moves."""

    def __init__(self, likelihoods):
        super().__init__(likelihoods.X, likelihoods.y)
        self.now = 0.0

    def __call__(self, mixtures, outputscale, noise):
        value = super().__call__(mixtures, outputscale, noise)
        self.now += value.numel() / 64
        return value

    def perf_counter(self):
        return self.now


SECONDS = {
    "among the first draws": (Budget(100, seconds=0.3), DRAWS),
    "in the middle of a batch": (Budget(100, seconds=0.75), DRAWS),
    "in an ascent": (Budget(100, seconds=0.9), INFORMATION),
    "among the starts of the importance sampling": (Budget(30, seconds=2.0), DRAWS),
    "among its draws": (Budget(30, seconds=25.0), DRAWS),
    "nothing left": (Budget(30, seconds=0.0), DRAWS),
}


@pytest.mark.parametrize(("budget", "search"), SECONDS.values(), ids=SECONDS)
def test_time_stops_it_within_one_evaluation(monkeypatch, budget, search):
    problem = problem_of()
    clock = problem.likelihoods = Slow(problem.likelihoods)
    monkeypatch.setattr(marginalization, "time", clock)
    monkeypatch.setattr("gp_ensembles.papers.quadrature.search.time", clock)
    with pytest.warns(UserWarning, match="the time limit of the budget was reached"):
        found = run(problem, budget, search)
    assert budget.seconds <= clock.now <= budget.seconds + 1 / 64
    assert found.is_late
    assert bool(found.predict(problem.X[:3]).mean.isfinite().all())
    spent = found.state.num_evaluations
    assert spent == len(found.state.origins) == min(max(1, math.ceil(64 * budget.seconds)), budget.evaluations)


def test_a_well_known_evidence_stops_it():
    problem = RegressionProblem(tensor([0.0], [0.7], [1.5], [3.0]), tensor(0.1, -0.4, 0.9, 0.2), prior_of(1))
    everything = run(problem, 60, DRAWS)
    threshold = everything.history[len(everything.history) // 2].log_evidence_sd
    found = run(problem, Budget(60, log_evidence_sd=threshold), DRAWS)
    assert found.num_evaluations < 60
    assert found.history[-1].log_evidence_sd <= threshold
    assert all(step.log_evidence_sd > threshold for step in found.history[:-1])


def test_where_draws_miss_the_mass_there_are_ascents():
    problem, search = problem_of(), Search(PriorPolicy(), ascent_evaluations=7)
    found = run(problem, 60, search)
    assert found.state.origins.unique().tolist() == [0, 1, 2, 3]
    assert not prior_covers_likelihood(search, found.state)
    assert len(found.state.ascents) >= 1
    for path in found.state.ascents:
        assert found.state.evaluations.log_likelihood[path.row].item() == path.log_likelihood
    plain = run(problem, 60, DRAWS)
    assert plain.state.origins.unique().tolist() == [0, 3]
    assert found.history[-1].best_log_likelihood > plain.history[-1].best_log_likelihood


def test_where_draws_cover_the_mass_there_are_none():
    problem = RegressionProblem(tensor([0.0], [0.7], [1.5], [3.0]), tensor(0.1, -0.4, 0.9, 0.2), prior_of(1))
    search = Search(PriorPolicy())
    found = run(problem, 40, search)
    assert prior_covers_likelihood(search, found.state)
    assert found.state.origins.unique().tolist() == [0, 3]


def test_draws_of_which_one_has_all_the_mass_do_not_cover_it():
    """However few they are: nine draws of which one counts have an effective share of a ninth."""
    for count in [2, 5, 9, 30]:
        problem, search = problem_of(), DRAWS._replace(initial_share=1.0)
        state = evaluate_draws(problem, search, init_search(problem, search, count, seeded(0)), count)
        assert state.num_evaluations == count
        values = torch.full_like(state.evaluations.log_likelihood, -1000.0)
        values[0] = 0.0
        state = state._replace(evaluations=state.evaluations._replace(log_likelihood=values))
        assert not prior_covers_likelihood(Search(), state)


def test_without_a_generator_the_global_one_counts():
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(marginalize(problem_of(), Budget(10, draws=0), DRAWS))
    assert_same(found[0], found[1])
    X = torch.linspace(0.0, 7.0, 5, dtype=torch.float64).unsqueeze(-1)
    assert all(torch.equal(a, b) for a, b in zip(found[0].predict(X), found[1].predict(X), strict=True))
    assert not torch.equal(found[0].state.evaluations.cube, found[2].state.evaluations.cube)


def interrupt_after(monkeypatch, rounds, where="evaluate_batch"):
    """The keyboard's interruption comes in the middle of a round, after so many complete calls."""
    real, calls = getattr(marginalization, where), itertools.count()

    def interrupted(*arguments):
        if next(calls) == rounds:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(marginalization, where, interrupted)


def test_an_interruption_among_the_first_draws_keeps_those_that_are_done(tmp_path, monkeypatch):
    problem, file, search = problem_of(), tmp_path / "search.pt", DRAWS._replace(initial_share=1.0)
    whole = run(problem, 80, search)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2, "evaluate_draws")
        with pytest.warns(UserWarning, match="interrupted after 64 of 80 likelihoods"):
            part = run(problem, 80, search, checkpoint=file)
    assert part.num_evaluations == 64
    assert part.history == (), "no round was complete"
    assert bool(part.predict(problem.X[:3]).mean.isfinite().all())
    assert_same(run(problem, 80, search, checkpoint=file, seed=99), whole)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "rounds"), [("evaluate_batch", 1), ("evaluate_batch", 2), ("evaluate_ascent", 1)])
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(tmp_path, monkeypatch, where, rounds):
    problem, file = problem_of(), tmp_path / "search.pt"
    whole = run(problem, 50)
    with monkeypatch.context() as patch:
        interrupt_after(patch, rounds, where)
        with pytest.warns(UserWarning, match="interrupted after .* of 50 likelihoods"):
            part = run(problem, 50, checkpoint=file)
    assert 5 <= part.num_evaluations < 50
    assert part.history[-1].evaluations == part.num_evaluations
    assert torch.equal(part.state.evaluations.cube, whole.state.evaluations.cube[: part.num_evaluations])
    X = torch.linspace(0.0, 7.0, 4, dtype=torch.float64).unsqueeze(-1)
    prediction = part.predict(X)  # what there is can be used
    assert bool(prediction.mean.isfinite().all())
    assert bool((prediction.variance > 0).all())
    assert part.log_weights.exp().sum().item() == pytest.approx(1.0)
    assert_same(run(problem, 50, checkpoint=file, seed=99), whole)  # the generator's state is in the file


def test_a_checkpoint_changes_nothing_and_goes_on_with_a_larger_budget(tmp_path):
    file = tmp_path / "search.pt"
    with_file, without = run(problem_of(), 18, checkpoint=str(file)), run(problem_of(), 18)
    assert_same(with_file, without)
    assert [path.name for path in tmp_path.iterdir()] == ["search.pt"], "no partial file is left"
    again = run(problem_of(), 18, checkpoint=file)
    assert_same(again, without)
    assert again.history == with_file.history, "there was nothing left to do"
    more = run(problem_of(), 24, checkpoint=file)
    assert more.num_evaluations == 24
    assert torch.equal(more.state.evaluations.cube[:18], with_file.state.evaluations.cube)


def test_an_interruption_before_there_is_anything_is_one(monkeypatch):
    monkeypatch.setattr(marginalization, "init_search", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(problem_of(), 20)


def other_problems():
    X, y = problem_of().X, problem_of().y + problem_of().mean
    return {
        "targets": (RegressionProblem(X, y + 1e-9 * X.squeeze(-1), prior_of()), DRAWS),
        "inputs": (RegressionProblem(X * (1 + 1e-12), y, prior_of()), DRAWS),
        "number of components": (RegressionProblem(X, y, prior_of(3)), DRAWS),
        "noise": (RegressionProblem(X, y, prior_of(noise=(1.1e-2, 1.0))), DRAWS),
        "means": (RegressionProblem(X, y, prior_of(scale=0.61)), DRAWS),
        "prior mean": (RegressionProblem(X, y, prior_of(), mean=0.0), DRAWS),
        "search": (problem_of(), DRAWS._replace(batch_size=4)),
        "policy": (problem_of(), DRAWS._replace(policy=InformationPolicy())),
    }


def test_the_checkpoint_of_another_problem_is_refused(tmp_path):
    file = tmp_path / "search.pt"
    run(problem_of(), 12, DRAWS, checkpoint=file)
    before = file.read_bytes()
    for problem, search in other_problems().values():
        with pytest.raises(ValueError, match=r"search\.pt belongs to another data set, prior or search; remove it"):
            run(problem, 20, search, checkpoint=file)
        assert file.read_bytes() == before


@every_search
def test_failed_likelihoods_are_recorded_and_not_fatal(search):
    problem = problem_of()
    problem.likelihoods = Failing(problem.likelihoods, 1e-2)
    found = run(problem, 18, search)
    assert found.num_evaluations == 18
    values = found.state.evaluations.log_likelihood
    assert found.num_failed == int(values.isnan().sum()) > 0
    assert math.isfinite(found.log_evidence)
    assert found.log_weights.numel() == 18 - found.num_failed
    assert bool((found.hyperparameters(torch.arange(18 - found.num_failed)).noise < 1e-2).all())
    assert bool(found.predict(problem.X[:3] + 0.01).mean.isfinite().all())
