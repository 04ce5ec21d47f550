r"""Figure 7 of Lu, Karanikolas and Giannakis (2022) again: embeddings in two dimensions, their errors and their time.

Seven experts with RBF kernels of squared length scales :math:`2^{-3}, ..., 2^3` and 50 frequencies each. The rows of a
run are shuffled by its seed; a tenth of them (a twentieth for MNIST) is what the online models start from. An
embedding's error is the share of rows whose nearest neighbor in it has another label.
"""

import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.cli.running import one_sentence
from gp_ensembles.files.checkpoint import fingerprint
from studies.harness.experiment import Choices
from studies.harness.parts import Parts, Record, Results, running
from studies.harness.plan import check_range, chosen
from studies.harness.report import write_report
from studies.ie_gplvm.gpytorch_model import LEARNING_RATE, MINIBATCH, NUM_INDUCING
from studies.ie_gplvm.methods import CONSTANTS, METHODS, RUNS, Effort, LatentTask, without_umap
from studies.ie_gplvm.neighbors import neighbor_error
from studies.ie_gplvm.pictures import draw_embeddings
from studies.ie_gplvm.sets import START_SHARES, LatentRows, latent_sets, shuffled_rows
from studies.ie_gplvm.tables import LatentPlan, long_rows, sizes, summary_rows, table_text

_VERSION = 1  # of everything that scores depend on besides the data; a new number makes old files worthless
_SIZES = {7: 2.4, 8: 3.6}  # inches of a side of a panel
_REMARK = (
    "Error: share of rows whose nearest other row in the embedding has another label, in percent; median, lowest and "
    "highest over draws. Seconds: medians, on the wall and of the processor. Online methods meet the rows one after "
    "another and keep no more than they need for the next; those that take the rows all at once see every row before "
    "they place the first: PCA, kernel PCA, GPyTorch's latent variable model and UMAP, whose first run includes the "
    "compilation of its code."
)


def run(choices: Choices, effort: Effort = Effort(), *, figure: int = 7) -> str:  # noqa: B008 (immutable)
    """Make the figure; write its table as text, every run as CSV, medians as JSON and the embeddings as PNG.

    Files are ``figure_7.txt``, ``.csv``, ``.json`` and ``.png`` in ``choices.out``. Finished parts (a set, a method and
    a draw) are kept in ``latent_parts`` beside them, so an interrupted call resumes with what is done.

    Args:
        choices: Sets, methods, draws, seed, rows, and the folder of the results.
        effort: Block size of the ensembles, steps of GPyTorch's model.
        figure: 7, or 8 for maps of the first draw, a large one for each set and method.

    Returns:
        The table and what is to be known of it, as text.

    Raises:
        ValueError: If there is no such set or method, a number is out of range, or nothing could be run.
        OSError: If a set cannot be read or ``choices.out`` cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> from studies.harness.sources import Sources
        >>> out = pathlib.Path(tempfile.mkdtemp())
        >>> text = run(Choices(Sources(None), out, 1, 60, ["digits"], ["pca"]))
        >>> sorted(path.name for path in out.iterdir() if path.suffix in (".csv", ".json", ".txt"))
        ['figure_7.csv', 'figure_7.json', 'figure_7.txt']
    """
    methods, notes = _methods(choices.methods)
    check_range("trials", choices.trials, 1)
    check_range("seed", choices.seed, 0)
    if choices.max_rows is not None:
        check_range("max_rows", choices.max_rows, 1)
    check_range("block_size", effort.block_size, 1)
    check_range("iterations", effort.iterations, 1)
    tables, about_sets = latent_sets(choices)
    make_folder(choices.out)
    plan = LatentPlan(tables, methods, choices.trials, choices.seed, choices.max_rows, effort)
    results = Results(plan, ("set", "run", "draw"), plan.draws)
    results.notes.extend([*notes, *about_sets])
    runs = list(dict.fromkeys(METHODS[method].run for method in methods))
    with running(
        results, choices.out / "latent_parts", len(tables) * plan.draws * len(runs), choices.progress
    ) as parts:
        for name, table in tables.items():
            for draw in range(plan.draws):
                try:
                    rows = shuffled_rows(table, START_SHARES[name], plan.seed + draw, plan.max_rows)
                except ValueError as error:
                    parts.skip([(name, run, draw) for run in runs], one_sentence(error), len(runs))
                    continue
                for run in runs:
                    _run_part(parts, plan, (name, run, draw), rows)
    return _written(results, choices.out, figure)


def _methods(given: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The methods that can be run, in the order of the table, and a note on one that cannot."""
    wanted = chosen(given, METHODS, "method")
    reason = without_umap() if "umap" in wanted else None
    if reason is None:
        return wanted, []
    if wanted == ["umap"]:
        raise ValueError(f"umap cannot be run: {reason}")
    return [name for name in wanted if name != "umap"], [f"umap was left out: {reason}"]


def _run_part(parts: Parts, plan: LatentPlan, key: tuple[str, str, int], rows: LatentRows) -> None:
    name, run, draw = key
    uses = next(method.uses for method in METHODS.values() if method.run == run)
    settings: dict[str, object] = {
        "version": _VERSION,
        "set": name,
        "run": run,
        "seed": plan.seed + draw,
        "rows": len(rows.Y),
        **{part: value for part, value in plan.effort._asdict().items() if part in uses},
    }
    # The first draw is for the picture, so its places are kept.
    pictured = draw == 0
    file = "-".join([*(str(value) for value in settings.values()), *["places"] * pictured])
    settings |= {"pictured": pictured, "data": fingerprint(rows.Y, rows.label), "num_start": rows.num_start}
    settings |= CONSTANTS.get(run, {})
    task = LatentTask(rows, plan.seed + draw, plan.effort)
    label = f"{name}, {run}, draw {draw + 1} of {plan.draws}"
    parts.run(key, file, settings, lambda: run_part(run, task, settings), label)


def run_part(run: str, task: LatentTask, settings: dict[str, object]) -> Record:
    """One part: the embeddings of one draw of rows by one run of a method, scored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other libraries about their own ways; what they give is scored
        clock = time.process_time()
        answer = RUNS[run](task)
        cpu_seconds = time.process_time() - clock
    rows = task.rows
    scores = {f"error_{reading}": neighbor_error(X, rows.label) for reading, X in answer.embeddings.items()}
    scores |= {
        "seconds": answer.seconds,
        "cpu_seconds": cpu_seconds,
        "columns": float(rows.Y.shape[1]),
        "dropped": float(rows.num_dropped),
    }
    scores |= {"num_start": float(rows.num_start), **answer.checks}
    curves: dict[str, list[float]] = {}
    if settings["pictured"]:
        curves["label"] = rows.label.tolist()
        for reading, X in answer.embeddings.items():
            # Six digits are enough for the eye and make the file a third of its size.
            places = [[float(f"{value:.6g}") for value in column] for column in X.T.tolist()]
            curves |= {f"{reading}_{axis}": column for axis, column in zip("xy", places, strict=True)}
    return Record(settings, scores, curves)


def _written(results: Results[LatentPlan], out: Path, figure: int) -> str:
    plan = results.plan
    title = f"IE-GPLVM, figure {figure}: embeddings in two dimensions, {plan.draws} draw(s) from seed {plan.seed}"
    titles = "".join(f"{name}: {METHODS[name].title}\n" for name in plan.methods)
    notes = [_effort(plan), *sizes(results), *results.failure_lines(), *results.notes]
    text = "\n".join([title, _REMARK, "", titles, table_text(results), "", *notes])
    content = {
        "title": title,
        "remark": _REMARK,
        "draws": plan.draws,
        "seed": plan.seed,
        "max_rows": plan.max_rows,
        **plan.effort._asdict(),
        "rows": summary_rows(results),
        "notes": notes,
        "failures": results.failed(),
    }
    pictures = {"": partial(draw_embeddings, results, size=_SIZES[figure])}
    return write_report(out / f"figure_{figure}", text, long_rows(results), content, pictures)


def _effort(plan: LatentPlan) -> str:
    return (
        f"ensembles: {plan.effort.block_size} row(s) at a time; bayesian_gplvm: {plan.effort.iterations} steps of Adam "
        f"with rate {LEARNING_RATE:g}, minibatches of {MINIBATCH} rows, {NUM_INDUCING} inducing points a column, "
        f"started at principal components"
    )
