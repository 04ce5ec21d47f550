"""Ensembles as surrogates of Ax: the example of the docs, fitting, cross-validation that does not leak, two metrics."""

import copy
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from botorch.exceptions import InputDataWarning, UnsupportedError
from botorch.models import ModelList
from gpytorch.mlls import ExactMarginalLogLikelihood, LeaveOneOutPseudoLikelihood

pytest.importorskip("ax", reason="Ax is an optional extra")

from ax.adapter.cross_validation import cross_validate
from ax.adapter.registry import Generators
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.generation_strategy.generation_node import GenerationNode
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generators.torch.botorch_modular.surrogate import ModelConfig, SurrogateSpec
from ax.generators.torch.botorch_modular.utils import fit_botorch_model

from gp_ensembles.bo import EnsembleModel, ExactEnsembleModel
from gp_ensembles.bo.ax import fit_ax_model, register
from gp_ensembles.ensembles.bases import FourierBasis, LinearBasis
from gp_ensembles.ensembles.presets import oebe
from tests.bo.contract_cases import close, random_features

# Ax itself uses what pandas, and Ax, are about to take away; what torch and BoTorch are about to is an error here, too.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "error::DeprecationWarning:(gp_ensembles|torch|gpytorch|botorch|linear_operator)"
)
DOCS = Path(__file__).resolve().parents[2] / "docs" / "how_to" / "ax.md"
DTYPE = torch.float64
NUM_TRIALS = 12


@pytest.fixture(autouse=True)
def _registered(_repeatable):
    register()


def evaluate(parameters, sem=None):
    """A bumpy metric and a sloping one, with their standard errors if known."""
    x = torch.tensor([parameters["x1"], parameters["x2"]], dtype=DTYPE)
    values = {"bumpy": (5 * x[0]).sin() + (x[1] / 3).cos() * x[0], "sloping": x[0] + 0.1 * x[1].square()}
    return {name: value.item() if sem is None else (value.item(), sem) for name, value in values.items()}


def experiment(objective="-bumpy", constraints=None, sem=None, num_trials=NUM_TRIALS):
    """A client with trials that somebody else chose."""
    client = Client(random_seed=0)
    columns = (("x1", (-1.0, 1.0)), ("x2", (0.0, 10.0)))
    client.configure_experiment([RangeParameterConfig(name=n, bounds=b, parameter_type="float") for n, b in columns])
    client.configure_optimization(objective=objective, outcome_constraints=constraints)
    wanted = client._experiment.metrics
    for unit in torch.quasirandom.SobolEngine(2, scramble=True, seed=1).draw(NUM_TRIALS, dtype=DTYPE)[:num_trials]:
        parameters = {"x1": 2 * unit[0].item() - 1, "x2": 10 * unit[1].item()}
        data = {name: value for name, value in evaluate(parameters, sem).items() if name in wanted}
        client.complete_trial(client.attach_trial(parameters), raw_data=data)
    return client


def small_ensemble():
    return random_features(torch.rand(1, 2, dtype=DTYPE), (0.1, 0.1), (0.3, 0.6), 32)


def surrogate(model_class=EnsembleModel, **options):
    return SurrogateSpec([ModelConfig(botorch_model_class=model_class, **options)])


def adapter(client, spec=None):
    """Ax's adapter, with the model fitted to all trials; cross-validation does not fit again."""
    spec = surrogate() if spec is None else spec
    return Generators.BOTORCH_MODULAR(experiment=client._experiment, surrogate_spec=spec, refit_on_cv=False)


def test_the_example_of_the_docs_improves_on_its_initial_design(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    namespace = {}
    exec(compile(block, str(DOCS), "exec"), namespace)
    values = namespace["values"]
    assert len(values) == 10
    assert min(values[5:]) < min(values[:5])
    assert namespace["branin"].optimal_value <= min(values) < 3
    assert isinstance(namespace["client"]._generation_strategy.adapter.generator.surrogate.model, ExactEnsembleModel)
    assert "the minimum is 0.40" in capsys.readouterr().out


def test_ax_fits_the_hyperparameters():
    X = torch.rand(15, 2, dtype=DTYPE)
    model = ExactEnsembleModel(X, (5 * X.sum(-1, keepdim=True)).sin())
    by_hand = copy.deepcopy(model).fit()
    assert float(by_hand.log_evidence) > float(model.log_evidence) + 0.1
    fit_botorch_model(model, mll_class=ExactMarginalLogLikelihood, mll_options={})
    close(model.posterior(X).mean, by_hand.posterior(X).mean)


def test_registering_again_changes_nothing():
    before = dict(fit_botorch_model.funcs)
    register()
    assert fit_botorch_model.funcs == before
    assert fit_botorch_model.dispatch(EnsembleModel) is fit_ax_model


def test_without_ax_the_door_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ax.storage.botorch_modular_registry", None)
    with pytest.raises(ImportError, match=r"gp_ensembles\[ax\]"):
        register()


@pytest.mark.parametrize(
    "asked", [{"mll_class": LeaveOneOutPseudoLikelihood}, {"mll_options": {"train_x": 1}}], ids=["class", "options"]
)
def test_another_likelihood_is_refused(asked):
    X = torch.rand(5, 2, dtype=DTYPE)
    model = ExactEnsembleModel(X, X[:, :1])
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UnsupportedError, match="by their own evidence"):
        fit_botorch_model(model, **{"mll_class": ExactMarginalLogLikelihood, **asked})
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_equal_outcomes_are_no_obstacle():
    """A constraint that every trial of the initial design meets alike, beside an objective that varies."""
    client = experiment("-bumpy", ["flat <= 1"], num_trials=0)
    for k in range(4):
        index = client.attach_trial({"x1": 0.3 * k, "x2": float(k)})
        client.complete_trial(index, raw_data={"bumpy": float(k * k), "flat": 0.0})
    with pytest.warns(InputDataWarning, match="all 4 observations"):
        fitted = adapter(client, surrogate(ExactEnsembleModel))
    assert len(fitted.gen(1).arms) == 1


def cross_validated(fitted):
    """Means and variances of Ax's leave-one-out predictions in the models' units, (2, n, O), by trial."""
    datasets = fitted.generator.surrogate.training_data
    columns = {name: dataset.Y[:, o] for dataset in datasets for o, name in enumerate(dataset.outcome_names)}
    found = torch.full((2, NUM_TRIALS, len(columns)), torch.nan, dtype=DTYPE)
    for result in cross_validate(fitted, untransform=False):
        row = int(result.observed.arm_name.partition("_")[0])
        for o, (name, column) in enumerate(columns.items()):
            seen = result.observed.data
            assert seen.means[seen.metric_signatures.index(name)] == pytest.approx(column[row].item())
            at = result.predicted.metric_signatures.index(name)
            found[0, row, o] = float(result.predicted.means[at])
            found[1, row, o] = float(result.predicted.covariance[at, at])
    return found


def moments(model, X):
    with torch.no_grad():
        posterior = model.posterior(X)
        return torch.stack([posterior.mean, posterior.variance])


def left_out(model):
    """The same, from models of all rows but one with the hyperparameters of the model of all rows."""
    found = []
    for row in range(NUM_TRIALS):
        rest = torch.arange(NUM_TRIALS) != row
        is_exact = isinstance(model, ExactEnsembleModel)
        held = type(model)(
            model.data.X[rest],
            model.data.Y[rest],
            None if model.data.noise is None else model.data.noise[rest],
            **({} if is_exact else {"ensemble": copy.deepcopy(model.ensemble)}),
            outcome_transform=None,
            input_transform=copy.deepcopy(model.input_transform),
        )
        if is_exact:
            held.with_hyperparameters_(model.hyperparameters)
        found.append(moments(held, model.data.X[row : row + 1]))
    return torch.cat(found, -2)


TWO_METRICS = {"objective": "-bumpy", "constraints": ["sloping <= 2"]}
CASES = {
    "one metric": ({}, {}),
    "exact": ({}, {"model_class": ExactEnsembleModel}),
    "exact, known noise": ({"sem": 0.1}, {"model_class": ExactEnsembleModel}),
    "exact, two metrics": (TWO_METRICS, {"model_class": ExactEnsembleModel}),
    "a preset": ({}, {"model_options": {"ensemble": replace(oebe, bases=(LinearBasis(), FourierBasis(20)))}}),
    "two metrics": (TWO_METRICS, {"model_options": {"ensemble": small_ensemble()}}),
}


@pytest.mark.parametrize(("trials", "options"), CASES.values(), ids=CASES.keys())
def test_cross_validation_does_not_leak(trials, options):
    """Held-out predictions are those of models that never saw the row, and not those of the model of all rows."""
    fitted = adapter(experiment(**trials), surrogate(**options))
    found, model = cross_validated(fitted), fitted.generator.surrogate.model
    models = list(model.models) if isinstance(model, ModelList) else [model]
    assert all((model.data.noise is not None) == ("sem" in trials) for model in models)
    close(found, torch.cat([left_out(model) for model in models], -1))
    in_sample = torch.cat([moments(model, model.data.X) for model in models], -1)
    assert bool(((found - in_sample).abs() > 1e-2).any(-2).all())


def searching(client, spec):
    generator_spec = GeneratorSpec(Generators.BOTORCH_MODULAR, generator_kwargs={"surrogate_spec": spec})
    node = GenerationNode(name="ensemble", generator_specs=[generator_spec])
    client.set_generation_strategy(GenerationStrategy(nodes=[node]))
    return client


GOALS = {
    "two objectives": ("-bumpy, sloping", ["bumpy <= 1", "sloping >= 0"]),  # the constraints are the reference point
    "objective and constraint": tuple(TWO_METRICS.values()),
}


@pytest.mark.parametrize(("objective", "constraints"), GOALS.values(), ids=GOALS.keys())
@pytest.mark.parametrize("exact", [False, True])
def test_two_metrics_become_outputs_or_a_list(objective, constraints, exact):
    spec = surrogate(ExactEnsembleModel) if exact else surrogate(model_options={"ensemble": small_ensemble()})
    client = searching(experiment(objective, constraints), spec)
    ((index, parameters),) = client.get_next_trials(max_trials=1).items()
    client.complete_trial(index, raw_data=evaluate(parameters))
    model = client._generation_strategy.adapter.generator.surrogate.model
    if exact:
        assert (type(model), model.num_outputs) == (ExactEnsembleModel, 2)
    else:
        assert [type(part) for part in model.models] == [EnsembleModel, EnsembleModel]
    if "," in objective:
        assert client.get_pareto_frontier(use_model_predictions=False)
    else:
        best = client.get_best_parameterization(use_model_predictions=False)[0]
        assert evaluate(best)["sloping"] <= 2


@pytest.mark.parametrize("model_class", [ExactEnsembleModel, EnsembleModel])
def test_an_experiment_is_saved_and_resumed(tmp_path, model_class):
    client = searching(experiment(), surrogate(model_class))
    ((index, parameters),) = client.get_next_trials(max_trials=1).items()
    client.complete_trial(index, raw_data={"bumpy": evaluate(parameters)["bumpy"]})
    path = str(tmp_path / "experiment.json")
    client.save_to_json_file(path)
    resumed = Client.load_from_json_file(path)
    ((index, _),) = resumed.get_next_trials(max_trials=1).items()
    assert index == NUM_TRIALS + 1
    assert isinstance(resumed._generation_strategy.adapter.generator.surrogate.model, model_class)
