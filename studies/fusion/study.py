r"""The comparison of the fusion paper again (Ajirak et al. 2024, Figure 3), with rules of fixed weights beside it.

The hyperparameters of all models are those of the made-up rows. The fixed experts of BHS and P-BHS are exact Gaussian
processes on disjoint parts of the first half of the training rows, and weights are learned on the second half.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gp_ensembles.cli.summary import versions
from gp_ensembles.cli.text_tables import as_csv
from gp_ensembles.cli.writing import make_folder, write_json, write_text
from studies.fusion.methods import INFERENCES, METHODS
from studies.fusion.pictures import draw_boxes
from studies.fusion.scores import FusionPlan, FusionScores, Setting, named, run_fusion
from studies.fusion.sets import NUM_ROWS
from studies.fusion.tables import findings, long_rows, summary_rows, table_text

_FEWEST_ROWS = 50


class _Figure(NamedTuple):
    """A figure of the paper: what is varied, and on what ranges of the inputs."""

    title: str
    experts: tuple[int, ...]
    frequencies: tuple[int, ...]
    half_widths: tuple[float, ...]


FIGURES = {
    "3a": _Figure("more experts", (2, 3, 4, 5), (30,), (1.0,)),
    "3b": _Figure("more frequencies", (2,), (10, 30, 50), (1.0, 3.0)),
}
_REMARK = (
    "NLPD: mean negative log predictive density of the test rows, in nats; 'truth' is the mixture that the rows come "
    "from. Seconds on the wall, without the training of the fixed experts. rhat: largest rank R-hat of the log joint "
    "and of log densities, over all chains; chains of MoGPE are in different modes and combined by stacking, none of "
    "which is a sign of convergence. high_pareto_k: share of leave-one-out densities with Pareto k above 0.7. Numbers "
    "are means over splits."
)


class Options(NamedTuple):
    """What may be chosen of a figure.

    Attributes:
        splits: How many random splits.
        models: Which models and rules; all by default.
        inference: hmc or laplace.
        seed: Seed of rows, splits and frequencies.
        num_rows: How many rows are made up, a fifth of them for testing.
    """

    splits: int = 5
    models: Sequence[str] | None = None
    inference: str = "hmc"
    seed: int = 0
    num_rows: int = NUM_ROWS


def run(
    figure: str | int | None,
    out: Path,
    options: Options = Options(),  # noqa: B008 (immutable)
    *,
    progress: bool = False,
) -> str:
    """Make a figure; write its table as text, its scores as CSV, its means as JSON and its boxes as PNG.

    Files are ``fusion_figure_<figure>.txt``, ``.csv``, ``.json`` and ``.png`` in ``out``. Finished parts (a model, a
    setting and a split) are kept in ``out/fusion_parts``, so a call that was cut goes on with what is done.

    Args:
        figure: 3a or 3b.
        out: Folder of the results; it is made if need be.
        options: Splits, models, inference, seed and rows.
        progress: Show a progress bar.

    Returns:
        The table and what is to be read from it, as text.

    Raises:
        ValueError: If there is no such figure, model or inference, a number is out of range, or nothing could be run.
        OSError: If ``out`` cannot be written.

    Example:
        >>> run("4", Path("nowhere"))
        Traceback (most recent call last):
        ValueError: --figure of fusion must be one of 3a, 3b, got 4
    """
    plan = _plan(str(figure), options)
    make_folder(out)
    parts = out / "fusion_parts"
    try:
        scores = run_fusion(plan, parts, progress)
    except KeyboardInterrupt:
        print(f"gp-ensembles: finished parts are in {parts}; the same command goes on with them", file=sys.stderr)
        raise
    return _written(scores, str(figure), out)


def _plan(figure: str, options: Options) -> FusionPlan:
    """The options as a plan, or what is wrong with them."""
    if figure not in FIGURES:
        raise ValueError(f"--figure of fusion must be one of {', '.join(FIGURES)}, got {figure}")
    if options.inference not in INFERENCES:
        raise ValueError(f"--inference must be one of {', '.join(INFERENCES)}, got {options.inference}")
    given = list(METHODS) if options.models is None else list(options.models)
    unknown = [name for name in given if name not in METHODS]
    if unknown or not given:
        raise ValueError(f"there is no model {unknown[0] if unknown else ''}; choose from {', '.join(METHODS)}")
    if len(set(given)) < len(given):
        raise ValueError(f"a model is named twice: {', '.join(given)}")
    if options.splits < 1:
        raise ValueError(f"--splits={options.splits} is out of range; give at least 1")
    if options.seed < 0:
        raise ValueError(f"--seed must be zero or positive, got {options.seed}")
    if options.num_rows < _FEWEST_ROWS:
        raise ValueError(f"--max_rows={options.num_rows} is out of range; this figure needs {_FEWEST_ROWS} rows")
    kind = FIGURES[figure]
    settings = [
        Setting(experts, frequencies, half_width)
        for half_width in kind.half_widths
        for experts in kind.experts
        for frequencies in kind.frequencies
    ]
    methods = [name for name in METHODS if name in given]
    return FusionPlan(settings, methods, options.splits, options.inference, options.seed, options.num_rows)


def _written(scores: FusionScores, figure: str, out: Path) -> str:
    plan, stem = scores.plan, out / f"fusion_figure_{figure}"
    title = (
        f"Fusion, Figure {figure}: {FIGURES[figure].title}; {plan.splits} split(s) of {plan.num_rows} rows, "
        f"inference by {plan.inference}"
    )
    titles = "".join(f"{name}: {METHODS[name].title}\n" for name in plan.methods)
    found = findings(scores)
    text = "\n".join([title, _REMARK, "", titles, table_text(scores), "", *found])
    failures = []
    for (method, setting, split), reason in scores.failures.items():
        failures.append({"method": method, **setting._asdict(), "split": split, "reason": reason})
        text += f"\n{method}, {named(setting)}, split {split + 1} failed: {reason}"
    header, lines = long_rows(scores)
    write_text(stem.with_suffix(".csv"), as_csv(header, lines))
    content = {
        "title": title,
        "remark": _REMARK,
        "splits": plan.splits,
        "inference": plan.inference,
        "seed": plan.seed,
        "num_rows": plan.num_rows,
        "rows": summary_rows(scores),
        "findings": found,
        "failures": failures,
        "versions": versions(),
    }
    write_json(stem.with_suffix(".json"), content)
    write_text(stem.with_suffix(".txt"), text + "\n")
    try:
        draw_boxes(scores, stem.with_suffix(".png"))
    except ImportError as error:
        text += f"\nno picture: {error}"
    return text
