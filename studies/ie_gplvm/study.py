r"""Figure 7 of Lu, Karanikolas and Giannakis (2022) again: embeddings in two dimensions, their errors and their time.

Seven experts with RBF kernels of squared length scales :math:`2^{-3}, ..., 2^3` and 50 frequencies each. The rows of a
run are shuffled by its seed; a tenth of them (a twentieth for MNIST) is what the online models start from. An
embedding's error is the share of rows whose nearest neighbor in it has another label.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gp_ensembles.cli.summary import versions
from gp_ensembles.cli.text_tables import as_csv
from gp_ensembles.cli.writing import make_folder, write_json, write_text
from studies.ie_gplvm.gpytorch_model import LEARNING_RATE, MINIBATCH, NUM_INDUCING
from studies.ie_gplvm.methods import METHODS, Effort, without_umap
from studies.ie_gplvm.pictures import draw_embeddings
from studies.ie_gplvm.scores import LatentPlan, LatentScores, run_gplvm
from studies.ie_gplvm.sets import load_sets
from studies.ie_gplvm.tables import findings, long_rows, summary_rows, table_text

FIGURE = 7
_REMARK = (
    "Error: share of rows whose nearest other row in the embedding has another label, in percent; median, lowest and "
    "highest over draws. Seconds: medians, on the wall and of the processor. Online methods meet the rows one after "
    "another and keep no more than they need for the next; those that take the rows all at once see every row before "
    "they place the first: PCA, kernel PCA, GPyTorch's latent variable model and UMAP, whose first run includes the "
    "compilation of its code."
)


class Options(NamedTuple):
    """What may be chosen of the figure.

    Attributes:
        dataset: The only set; all that can be had by default.
        methods: Which methods; all by default.
        draws: Runs of each method, each with its own frequencies and order of rows.
        seed: Seed of the first run; the next ones count on from it.
        max_rows: Most rows of a set; all by default.
        effort: Block size of the ensembles, steps of GPyTorch's model.
    """

    dataset: str | None = None
    methods: Sequence[str] | None = None
    draws: int = 3
    seed: int = 0
    max_rows: int | None = None
    effort: Effort = Effort()


def run(
    data: Path | None,
    out: Path,
    options: Options = Options(),  # noqa: B008 (immutable)
    *,
    progress: bool = False,
) -> str:
    """Make the figure; write its table as text, every run as CSV, medians as JSON and the embeddings as PNG.

    Files are ``figure_7.txt``, ``.csv``, ``.json`` and ``.png`` in ``out``. Finished parts (a set, a method and a
    draw) are kept in ``out/figure_7_parts``, so a call that was cut goes on with what is done.

    Args:
        data: A folder with a manifest and the sets; without it there is only the one that scikit-learn brings.
        out: Folder of the results; it is made if need be.
        options: Set, methods, draws, seed, rows and effort.
        progress: Show a progress bar.

    Returns:
        The table and what is to be known of it, as text.

    Raises:
        ValueError: If there is no such set or method, a number is out of range, or nothing could be run.
        OSError: If ``data`` cannot be read or ``out`` cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> out = pathlib.Path(tempfile.mkdtemp())
        >>> text = run(None, out, Options("digits", ["pca"], draws=1, max_rows=60))
        >>> sorted(path.name for path in out.iterdir() if path.suffix in (".csv", ".json", ".txt"))
        ['figure_7.csv', 'figure_7.json', 'figure_7.txt']
    """
    methods, notes = _methods(options.methods)
    if options.draws < 1:
        raise ValueError(f"at least one draw is needed, got {options.draws}")
    if options.seed < 0:
        raise ValueError(f"--seed must be zero or positive, got {options.seed}")
    if options.max_rows is not None and options.max_rows < 1:
        raise ValueError(f"--max_rows must be positive, got {options.max_rows}")
    if min(options.effort) < 1:
        raise ValueError(f"--block_size and --iterations must be positive, got {tuple(options.effort)}")
    tables, absent = load_sets(data, options.dataset)
    if absent:
        where = "without --data" if data is None else "in the folder"
        notes.append(f"not there {where}: {', '.join(absent)}")
    make_folder(out)
    parts = out / "figure_7_parts"
    plan = LatentPlan(tables, methods, options.draws, options.seed, options.max_rows, options.effort)
    try:
        scores = run_gplvm(plan, parts, progress)
    except KeyboardInterrupt:
        print(f"gp-ensembles: finished parts are in {parts}; the same command goes on with them", file=sys.stderr)
        raise
    return _written(scores, out, notes)


def _methods(given: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The methods that can be run, in the order of the table, and a note on one that cannot."""
    wanted = list(METHODS) if given is None else list(given)
    unknown = [name for name in wanted if name not in METHODS]
    if unknown or not wanted:
        raise ValueError(f"there is no method {unknown[0] if unknown else ''}; choose from {', '.join(METHODS)}")
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"a method is named twice: {', '.join(wanted)}")
    reason = without_umap() if "umap" in wanted else None
    if reason is None:
        return [name for name in METHODS if name in wanted], []
    if wanted == ["umap"]:
        raise ValueError(f"umap cannot be run: {reason}")
    return [name for name in METHODS if name in wanted and name != "umap"], [f"umap was left out: {reason}"]


def _written(scores: LatentScores, out: Path, notes: list[str]) -> str:
    plan, stem = scores.plan, out / f"figure_{FIGURE}"
    title = f"IE-GPLVM, figure {FIGURE}: embeddings in two dimensions, {plan.draws} draw(s) from seed {plan.seed}"
    titles = "".join(f"{name}: {METHODS[name].title}\n" for name in plan.methods)
    found = [_effort(plan), *findings(scores), *notes]
    try:
        draw_embeddings(scores, stem.with_suffix(".png"))
    except ImportError as error:
        found.append(f"no picture: {error}")
    text = "\n".join([title, _REMARK, "", titles, table_text(scores), "", *found])
    header, lines = long_rows(scores)
    write_text(stem.with_suffix(".csv"), as_csv(header, lines))
    content = {
        "title": title,
        "remark": _REMARK,
        "draws": plan.draws,
        "seed": plan.seed,
        "max_rows": plan.max_rows,
        **plan.effort._asdict(),
        "rows": summary_rows(scores),
        "notes": found,
        "versions": versions(),
    }
    write_json(stem.with_suffix(".json"), content)
    write_text(stem.with_suffix(".txt"), text + "\n")
    return text


def _effort(plan: LatentPlan) -> str:
    return (
        f"ensembles: {plan.effort.block_size} row(s) at a time; bayesian_gplvm: {plan.effort.iterations} steps of Adam "
        f"with rate {LEARNING_RATE:g}, minibatches of {MINIBATCH} rows, {NUM_INDUCING} inducing points a column, "
        f"started at principal components"
    )
