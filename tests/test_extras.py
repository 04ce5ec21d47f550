"""What works without the extra ``cli``, and what is said where it is missing.

Everything that pip would not install with the library is kept from being imported.
"""

import subprocess
import sys

import pytest
from packaging.requirements import Requirement

from gp_ensembles.extras import MODULES
from tests.pretend_installation import PROJECT, ROOT, brought, normalized, only_installed

STREAM = """\
import dataclasses, numpy as np, torch
import gp_ensembles as gpe
spec = dataclasses.replace(gpe.light, bases=(gpe.bases.LinearBasis(),))
X = torch.linspace(-1, 1, 80, dtype=torch.float64).unsqueeze(-1)
y = (X + 0.1 * (9 * X).sin()).squeeze(-1)
"""
COMMAND = "import gp_ensembles.__main__ as door\nsys.argv[1:] = {words}\nsys.exit(door.main())\n"


def run(code, *extras, folder=ROOT):
    command = [sys.executable, "-c", only_installed(*extras) + code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def passed(code, *extras):
    done = run(code, *extras)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_core_brings_little():
    """None of the extra but narwhals, which scikit-learn may bring; all of its modules are what the extra installs."""
    names = {"yaml": "pyyaml"}
    assert {names.get(module, module) for module in MODULES} == {
        normalized(Requirement(line).name) for line in PROJECT["optional-dependencies"]["cli"]
    }
    assert brought() & {"jsonargparse", "pandas", "plotly", "pyyaml", "polars", "pyarrow", "matplotlib"} == set()
    assert {"torch", "scikit-learn", "threadpoolctl"} <= brought()


def test_streams_estimators_and_tables_without_the_extra(tmp_path):
    """Arrays, and tables of numbers and words; what needs the extra is one sentence."""
    (tmp_path / "numbers.csv").write_text("hour,plant,load\n" + "".join(f"{k},ab,{2 * k}\n" for k in range(30)))
    (tmp_path / "dates.csv").write_text("time,load\n" + "".join(f"2024-01-{k + 1},{k}\n" for k in range(30)))
    code = """\
model = gpe.OnlineModel(gpe.StreamConfig(spec, warmup=40))
predictions = model.observe(X[:60], y[:60])
model.save("model.pt")
again = gpe.OnlineModel.load("model.pt")
assert torch.equal(again.predict(X[60:]).mean, model.predict(X[60:]).mean)
regressor = gpe.OnlineRegressor(spec, random_state=0).fit(X[:60].numpy(), y[:60].numpy())
assert np.isfinite(regressor.predict(X[60:].numpy())).all()
print(float(predictions.log_prob.nanmean()) > 0, sorted({"pandas", "yaml", "plotly"} & set(sys.modules)))
import gp_ensembles.data as data
from gp_ensembles.extras import MissingExtraError
print(tuple(data.read_csv("numbers.csv", "load").X.shape))
try:
    data.read_csv("dates.csv", "load")
except MissingExtraError as error:
    print(error)
from gp_ensembles.estimators.inputs import fit_frame
sys.modules["narwhals.stable.v1"] = None  # as where scikit-learn does not bring it
class Frame:
    columns = ("load",)
try:
    fit_frame(Frame(), 1)
except MissingExtraError as error:
    print(error)
"""
    done = run(STREAM + code, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "True []",
        "(30, 2)",
        'text that may be dates needs pandas; add it with: pip install "gp_ensembles[cli]"',
        'a frame or Parquet file needs narwhals; add it with: pip install "gp_ensembles[cli]"',
    ]


def test_a_command_is_one_sentence():
    for words in (["--help"], ["stream", "a.csv", "--target", "y"], ["configs"]):
        done = run(COMMAND.format(words=words))
        predicted = 'error: the command line needs jsonargparse; add it with: pip install "gp_ensembles[cli]"'
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"gp-ensembles: {predicted}\n")


def test_what_lacks_inside_a_command_is_one_sentence(capsys):
    from gp_ensembles.cli.running import drawn_if_possible, exit_code

    def lacks(given=()):
        raise ModuleNotFoundError("No module named 'plotly'", name="plotly")

    assert exit_code("program", [], lacks, "") == 2
    drawn_if_possible("report.html", lacks)
    assert capsys.readouterr().err.splitlines() == [
        'program: error: this command needs plotly; add it with: pip install "gp_ensembles[cli]"',
        'no report.html: report.html needs plotly; add it with: pip install "gp_ensembles[cli]"',
    ]


@pytest.mark.slow
def test_every_name_of_the_front_door():
    reported = passed(
        """\
import gp_ensembles as gpe
for name in gpe.__all__:
    try:
        getattr(gpe, name)
    except ImportError as error:
        print(name, str(error).partition("gp_ensembles[")[2].partition("]")[0])
"""
    )
    assert reported.splitlines() == ["RiverClassifier river", "RiverRegressor river", "plots plots"]


@pytest.mark.slow
def test_the_papers_tools_botorch_and_fleets():
    passed(
        STREAM
        + """\
from gp_ensembles.papers.quadrature import Budget, RegressionProblem
from gp_ensembles.papers.fusion.function_priors import FourierPrior
from gp_ensembles.papers.fusion.models import HetGP
generator = torch.Generator().manual_seed(0)
model = gpe.ExactEnsembleModel((X[::10] + 1) / 2, y[::10].unsqueeze(-1)).fit()
assert model.posterior(X[:3]).mean.shape == (3, 1)
assert gpe.select_knots(X[:40], y[:40]).predict(X[:3]).mean.shape == (3,)
problem = RegressionProblem(X[:20], y[:20])
assert gpe.marginalize(problem, Budget(40, draws=0), generator=generator).num_evaluations == 40
prior = FourierPrior(torch.ones_like(X[:2]))
assert gpe.fit_fusion(HetGP(X[:20], y[:20], prior, prior)).predict(X[:3]).variance.shape == (3,)
assert gpe.ie_gplvm(12, generator=generator).num_experts == 7
fleet = gpe.Fleet(spec, warmup=30)
names = ["north", "south"] * 40
fleet.fit(names[:60], X[:60], y[:60])
assert fleet.observe(names[60:], X[60:], y[60:]).mean.shape == (20,)
rows = np.hstack([X.numpy(), np.sin(3 * X.numpy()), X.numpy() ** 2])
embedded = gpe.EnsembleGPLVM(n_components=1, warmup=30, random_state=0).fit(rows[:50])
assert embedded.partial_fit_transform(rows[50:]).shape == (30, 1)
labels = np.where(rows[:, 0] > 0, "up", "down")[(order := np.random.default_rng(0).permutation(80))]
classes = gpe.OnlineClassifier(random_state=0).fit(rows[order][:60], labels[:60])
assert classes.predict_proba(rows[order][60:]).shape == (20, 2)
table = gpe.data.drifting_sensor(40, jump_at=20, gap=(30, 32), generator=generator).table
assert len(table.y) == 40
assert len(gpe.data.load("trump_approval").y) == 1001
"""
    )


@pytest.mark.slow
def test_river_on_dictionaries():
    """With what river brings: pandas was among it once."""
    pytest.importorskip("river", reason="river is an optional extra")
    reported = passed(
        STREAM
        + """\
model = gpe.RiverRegressor(spec, warmup=30)
for t in range(60):
    model.learn_one({"time": float(t), "season": None if t == 40 else float(np.sin(t))}, 5 + 2 * float(np.sin(t)))
print(round(model.predict_one({"time": 60, "season": 1.0})))
""",
        "river",
    )
    assert reported == "7\n"
