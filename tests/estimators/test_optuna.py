"""Optuna's sampler: places of every kind of parameter, constraints, running trials, directions, seeds."""

import math
import warnings

import pytest
import torch

optuna = pytest.importorskip("optuna", reason="Optuna is an optional extra", exc_type=ImportError)

from gp_ensembles.estimators.optuna import EnsembleSampler  # noqa: E402


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def mixed(trial):
    """Least, 0, at x = 0.3, rate = 0.01, layers = 5, share = 0.25, kind = b."""
    x = trial.suggest_float("x", -1, 1)
    rate = trial.suggest_float("rate", 1e-4, 1, log=True)
    layers = trial.suggest_int("layers", 1, 8)
    share = trial.suggest_float("share", 0, 1, step=0.25)
    kind = trial.suggest_categorical("kind", ["a", "b", None])
    fixed = trial.suggest_int("fixed", 3, 3)
    assert fixed == 3
    assert layers in range(1, 9)
    assert share in (0, 0.25, 0.5, 0.75, 1)
    away = torch.tensor(rate, dtype=torch.float64).log10() + 2
    return float((x - 0.3) ** 2 + 0.1 * away**2 + 0.05 * abs(layers - 5) + abs(share - 0.25) + (kind != "b"))


def study_of(objective, num_trials=18, direction="minimize", seed=0):
    study = optuna.create_study(sampler=EnsembleSampler(seed=seed), direction=direction)
    study.optimize(objective, n_trials=num_trials)
    return study


def test_numbers_logarithms_steps_and_categories_are_found_in_both_directions():
    low = study_of(mixed)
    assert low.best_params["kind"] == "b"
    assert low.best_value < 0.25
    assert min(trial.value for trial in low.trials[:10]) > low.best_value
    high = study_of(lambda trial: -mixed(trial), direction="maximize")
    assert [trial.params for trial in high.trials] == [trial.params for trial in low.trials]


def test_how_bad_a_bad_trial_is_says_nothing():
    def objective(trial, factor=1.0):
        value = (trial.suggest_float("x", -1, 1) - 0.3) ** 2
        return value if value < 0.8 else factor * value

    plain, steep = study_of(objective, 14), study_of(lambda trial: objective(trial, 1e6), 14)
    assert max(trial.value for trial in steep.trials) > 1e5
    assert [trial.params for trial in plain.trials] == [trial.params for trial in steep.trials]


def test_the_seed_decides_and_torch_keeps_its_own_numbers():
    before = torch.random.get_rng_state()
    first, again, other = (study_of(mixed, 11, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [trial.params for trial in first.trials] == [trial.params for trial in again.trials]
    assert first.trials[-1].params != other.trials[-1].params


def test_long_grids_and_logarithmic_integers_keep_their_values():
    def objective(trial):
        many = trial.suggest_int("many", 1, 100_000, log=True)
        fine = trial.suggest_float("fine", -1.0, 1.0, step=0.001)
        assert isinstance(many, int)
        assert 1 <= many <= 100_000
        assert abs(fine * 1000 - round(fine * 1000)) < 1e-6
        return abs(torch.tensor(float(many)).log10().item() - 3) + abs(fine - 0.2)

    assert study_of(objective).best_value < 0.3


def test_constraints_are_kept_once_they_are_known():
    def objective(trial):
        x, y = (trial.suggest_float(name, 0, 1) for name in "xy")
        trial.set_constraint("sum", 1.4 - x - y)  # a corner of 18 percent of the square
        return x + 2 * y

    study = study_of(objective, 22)
    late = [trial for trial in study.trials[12:] if trial.constraints["sum"] <= 0.02]
    assert len(late) >= 6
    assert study.best_value < 1.9  # the least is 1.8, at (1, 0.4)


def test_a_point_that_is_feasible_is_looked_for_first():
    def objective(trial):
        x = trial.suggest_float("x", 0, 1)
        trial.set_constraint("right", 0.97 - x)
        return x

    assert any(trial.constraints["right"] <= 0 for trial in study_of(objective, 20).trials[10:])


def test_infinite_constraints_count_as_the_largest_finite_one():
    """On their own side of zero, even if all finite ones are on the other."""

    def suggested(bad, good):
        def objective(trial):
            x = trial.suggest_float("x", 0, 1)
            trial.set_constraint("right", bad if x < 0.5 else good)
            return x

        return [trial.params for trial in study_of(objective, 14).trials]

    assert suggested(math.inf, -3.0) == suggested(3.0, -3.0) != suggested(1.0, -3.0)
    assert suggested(2.0, -math.inf) == suggested(2.0, -2.0)
    assert suggested(math.inf, -math.inf) == suggested(1.0, -1.0)


def test_running_trials_are_not_suggested_again():
    study = study_of(lambda trial: math.sin(20 * trial.suggest_float("x", 0, 1)), 10)
    distributions = {"x": optuna.distributions.FloatDistribution(0, 1)}
    asked = [study.ask(distributions).params["x"] for _ in range(3)]
    assert min(abs(a - b) for k, a in enumerate(asked) for b in asked[:k]) > 0.01
    corner = study_of(lambda trial: trial.suggest_float("x", 0, 1), 12)
    assert len({corner.ask(distributions).params["x"] for _ in range(4)}) == 4
    kinds = study_of(lambda trial: "abc".index(trial.suggest_categorical("kind", "abc")), 10)
    choices = {"kind": optuna.distributions.CategoricalDistribution("abc")}
    assert sorted(kinds.ask(choices).params["kind"] for _ in range(3)) == ["a", "b", "c"]


def test_one_sampler_for_one_study_after_another():
    """The second knows nothing of the first but where the random numbers are."""

    def second(first):
        sampler = EnsembleSampler(seed=0)
        for objective in (first, lambda trial: math.sin(40 * trial.suggest_float("x", 0, 1))):
            study = optuna.create_study(sampler=sampler)
            study.optimize(objective, n_trials=13)
        return [trial.params for trial in study.trials]

    wanted = second(lambda trial: trial.suggest_float("x", 0, 1))
    for other in (lambda trial: math.sin(40 * trial.suggest_float("x", 0, 1)), lambda t: t.suggest_float("z", 0, 1)):
        assert second(other) == wanted


def test_categories_alone_and_parameters_that_depend_on_them():
    def objective(trial):
        kind = trial.suggest_categorical("kind", ["a", "b", "c"])
        return trial.suggest_float("x", 0, 1) if kind == "a" else 2.0 + trial.suggest_float("y", 0, 1)

    study = study_of(objective, 16)
    assert study.best_params["kind"] == "a"
    study.add_trial(optuna.trial.create_trial(value=-1.0))  # by another worker, just now: without the parameter
    space = {"kind": optuna.distributions.CategoricalDistribution(["a", "b", "c"])}
    assert study.sampler.sample_relative(study, study.ask(), space).keys() == {"kind"}


def test_what_says_nothing_is_no_obstacle():
    """Equal values, infinite ones, and a parameter that only some trials have."""

    def objective(trial):
        x = trial.suggest_float("x", 0, 1)
        if trial.number % 2:
            trial.suggest_float("sometimes", 0, 1)
        return 1.0 if trial.number < 14 else float("inf") if trial.number == 15 else x

    assert len(study_of(objective, 18).trials) == 18


def test_what_is_refused():
    study = optuna.create_study(sampler=EnsembleSampler(), directions=["minimize", "maximize"])
    with pytest.raises(ValueError, match="supports one objective, but this study has 2"):
        study.ask().suggest_float("x", 0, 1)
    with pytest.raises(ValueError, match="n_startup_trials is 1"):
        EnsembleSampler(n_startup_trials=1)
