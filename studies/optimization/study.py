"""Methods of Bayesian optimization on problems, from several seeds: runs, tables of regrets and their pictures."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product

from gp_ensembles.numerics.arguments import check_device
from studies.harness.experiment import Choices
from studies.harness.parts import Record, Results, running
from studies.harness.plan import check_range, chosen
from studies.harness.report import write_report
from studies.optimization.methods import METHODS, make_method
from studies.optimization.pictures import draw_regrets
from studies.optimization.problems import PROBLEMS, make_problem
from studies.optimization.runs import Runs, as_record, as_trace, run_one
from studies.optimization.tables import (
    Summary,
    differences,
    differences_markdown,
    summarize,
    table_lines,
    table_markdown,
)

NAMED = (  # run where they are named: slow ones, and members of another kind
    "bayesian-logei", "saas-logei", "map-saas-logei", "vbll-logei",
    "matern-rbf-logei", "matern-exact-logei", "gp-quadratic-logei",
)  # fmt: skip
REFERENCES = ("matern-logei", "gp-logei")  # what methods are compared with, seed by seed


@dataclass(frozen=True)
class RegretSettings:
    """Further options."""

    problems: list[str] = field(
        default_factory=lambda: [name for name in PROBLEMS if name != "tuning"],  # run where it is named
        metadata={"help": f"branin drifting or others of {', '.join(PROBLEMS)}"},
    )
    iterations: int = field(default=30, metadata={"help": "suggestions of a run, after the initial design"})
    num_initial: int = field(default=10, metadata={"help": "points of the initial design"})
    device: str = field(default="cpu", metadata={"help": "where models are, in float64: cpu, cuda, cuda:1"})


def run(choices: Choices, settings: RegretSettings) -> str:
    """Run every method on every problem from every seed; write the table, all regrets and their pictures.

    Files are ``regret.txt``, ``.csv``, ``.json``, ``regret_simple.png`` and ``regret_cumulative.png``. Finished runs
    are kept in ``runs`` beside them, so an interrupted call resumes with what is done.

    Args:
        choices: Methods, seeds and the folder of the results.
        settings: Problems and the length of runs.

    Returns:
        The table and what is to be known of it, as text.

    Raises:
        ValueError: If a name is unknown, a number too small, or nothing could be run.
        ImportError: If a package is missing that a method needs.
        OSError: If the folder cannot be written.
    """
    names = chosen(settings.problems, PROBLEMS, "problem")
    methods = chosen(choices.methods, METHODS, "method")
    if choices.methods is None:
        methods = [name for name in methods if name not in NAMED]
    _check(settings, methods)
    results = Results(None, ("problem", "method", "trial"), choices.trials)
    total = choices.trials * len(names) * len(methods)
    with running(results, choices.out / "runs", total, choices.progress) as parts:
        # Seeds outermost: after an interruption every pair has about as many runs.
        for trial in range(choices.trials):
            seed = choices.seed + trial
            for problem in names:
                for method in methods:
                    used = {**asdict(settings), "problems": problem, "method": method, "seed": seed}
                    make = partial(_record, problem, method, seed, settings, used)
                    label = f"{problem} {method}, seed {seed}"
                    parts.run((problem, method, trial), f"{problem}-{method}-{seed}", used, make, label)
    plan = product(names, methods, range(choices.trials))
    traces = {run: as_trace(results.records[run]) for run in plan if run in results.records}
    return _written(choices, settings, Runs({name: make_problem(name) for name in names}, traces), results)


def _record(problem: str, method: str, seed: int, settings: RegretSettings, used: dict[str, object]) -> Record:
    lengths = settings.iterations, settings.num_initial, settings.device
    return as_record(run_one(make_problem(problem, seed), method, seed, *lengths), used)


def _check(settings: RegretSettings, methods: Sequence[str]) -> None:
    """Raise ValueError or ImportError for what cannot be run, in one sentence."""
    on_host = [name for name in methods if not make_method(name).runs_anywhere]
    if check_device(settings.device).type != "cpu" and on_host:
        raise ValueError(
            f"{', '.join(on_host)}: not on {settings.device}, where BoTorch's part does not run or was not tried; "
            f"leave --device out, or choose other --methods"
        )
    check_range("iterations", settings.iterations, 1)
    if settings.num_initial < 2:
        raise ValueError(f"--num-initial={settings.num_initial} is out of range; models need two observations")


def _written(choices: Choices, settings: RegretSettings, runs: Runs, results: Results[None]) -> str:
    summaries = summarize(runs)
    parts = [
        table_markdown(summaries, runs),
        *(differences_markdown(differences(runs, reference), reference) for reference in REFERENCES),
        "\n".join(results.failure_lines()),
    ]
    content = {
        "settings": asdict(settings),
        "curves": [_curves(summary) for summary in summaries],
        "failures": results.failed(),
    }
    text = "\n\n".join(part for part in parts if part)
    pictures = draw_regrets(summaries, runs.problems)
    return write_report(choices.out / "regret", text, table_lines(summaries), content, pictures)


def _curves(summary: Summary) -> dict[str, object]:
    """Both regrets after every evaluation, with their intervals."""
    curves = {"log10_simple_regret": summary.simple_curve, "cumulative_regret": summary.cumulative_curve}
    plain = {name: {part: value.tolist() for part, value in curve._asdict().items()} for name, curve in curves.items()}
    return {"problem": summary.problem, "method": summary.method, **plain}
