"""The MASKERADE paper's tables of predictions: their layouts and their text."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from studies.harness.comparison import Printed, beside_printed, estimate, paired, read_printed
from studies.harness.parts import Results
from studies.harness.sources import PaperSet
from studies.harness.text import aligned
from studies.maskerade import sets
from studies.maskerade.predictions import SCORES

PRINTED = Path(__file__).with_name("printed.csv")
ALL = ("maskerade-i", "maskerade-u", "maskerade-r", "fkl", "vssgp", "sobol", "sm", "rbf", "matern")
LARGE = ("maskerade-r", "maskerade-i", "fkl", "vssgp", "sm", "sobol")
_COSTS = ("evaluations", "seconds")
ALL_SCORES = (*SCORES, *_COSTS, "best_log_likelihood", "kernels")


class Plan(NamedTuple):
    """What is to be run.

    Attributes:
        sets: Names of the sets.
        methods: Names of the methods.
        holdout: How test rows are chosen.
        parts: How many splits of each set.
        evaluations: Likelihoods that a method may spend on a part.
        max_rows: Most rows of a set; all if ``None``.
        seed: Seed of the first part; the next ones count on from it.
        as_published: Whether the choices are the authors'.
    """

    sets: Sequence[str]
    methods: Sequence[str]
    holdout: sets.Holdout
    parts: int
    evaluations: int
    max_rows: int | None
    seed: int
    as_published: bool


class Layout(NamedTuple):
    """A table of the paper.

    Attributes:
        name: Name of its experiment.
        title: What it is about.
        sets: Its sets.
        holdout: How its test rows are chosen.
        methods: Its methods.
        columns: The scores shown in the text; the files hold all.
        tested: The scores whose differences are tested.
        remark: Which of our scores the paper's numbers are.
        evaluations: The paper's budget of likelihoods; ours where the paper's is in seconds.
    """

    name: str
    title: str
    sets: tuple[PaperSet, ...]
    holdout: sets.Holdout
    methods: tuple[str, ...]
    columns: tuple[str, ...]
    tested: tuple[str, ...]
    remark: str
    evaluations: int = 200


LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(
            "table-1",
            "solar irradiance, 1610 to 2000",
            (sets.SOLAR,),
            sets.BLOCKS,
            ALL,
            ("rmse", "rmse_standardized", "log_prob", "log_prob_sum", "log_prob_joint"),
            ("rmse", "log_prob_sum"),
            "The paper prints RMSE and no unit; it stands under rmse (W/m^2), the standardized one is beside it. The "
            "split is one and the same; further trials are further seeds of the methods.",
            1000,
        ),
        Layout(
            "table-2",
            "regression, ten folds",
            (sets.YACHT, sets.MPG, sets.CONCRETE, sets.AIRFOIL),
            sets.TEN_FOLDS,
            ALL,
            ("rmse", "log_prob_joint", "log_prob_sum"),
            ("rmse", "log_prob_joint", "log_prob_sum"),
            "The paper's RMSE is rmse. Its LL is log_prob_joint for MASKERADE, the joint density of the test fold in "
            "standardized units, and log_prob_sum for FKL, a sum of the rows' own log densities: each of our methods "
            "has both, and the paper's two columns cannot be compared with one another.",
        ),
        Layout(
            "table-3",
            "regression, five folds of three shuffles",
            (sets.CONCRETE, sets.AIRFOIL),
            sets.FIFTEEN_FOLDS,
            ALL,
            ("mse_standardized", "rmse", "log_prob_sum"),
            ("mse_standardized",),
            "The paper's MSE is mse_standardized.",
        ),
        Layout(
            "table-4",
            "thousands of rows, a tenth of them held out",
            (sets.STERLING, sets.ROAD),
            sets.TENTHS,
            LARGE,
            ("rmse", "log_prob_joint", "log_prob_sum"),
            ("rmse", "log_prob_joint"),
            "The paper's RMSE is rmse, its LL log_prob_joint. Likelihoods are dense up to 2 000 rows, Toeplitz for a "
            "longer series on a grid, and the variational bound of 300 knots elsewhere.",
        ),
        Layout(
            "table-5",
            "time series, a tenth of the rows held out",
            (sets.AIRLINE, sets.CO2, sets.CO2_GLOBAL),
            sets.TENTHS,
            ALL,
            ("rmse_standardized", "log_prob_sum", "log_prob_joint"),
            ("rmse_standardized", "log_prob_sum"),
            "The paper's RMSE is rmse_standardized. Its CO2 is Mauna Loa by its text (co2: monthly levels), but by the "
            "authors' code the global mean (co2_global: differences from month to month); the printed number stands "
            "beside both.",
            1000,
        ),
    )
}


def table_text(layout: Layout, results: Results[Plan]) -> str:
    """Means and standard errors over splits: a block for each set, methods down."""
    blocks = []
    for name in results.plan.sets:
        rows: list[list[object]] = []
        for method in results.plan.methods:
            if not results.found(name, method):
                continue
            cells = [str(estimate(results.values(kind, name, method))) for kind in layout.columns]
            costs = [f"{results.mean(kind, name, method):.4g}" for kind in _COSTS]
            rows.append([method, *cells, *costs, str(len(results.found(name, method)))])
        if rows:
            title = f"{name}: {results.plan.holdout.title}"
            blocks.append(f"{title}\n" + aligned(["method", *layout.columns, *_COSTS, "parts"], rows))
    return "\n\n".join(blocks)


def paired_text(layout: Layout, results: Results[Plan]) -> str:
    """The first method less each other, split by split; empty where no two splits have both."""
    first, *others = results.plan.methods
    rows: list[list[object]] = []
    for name in results.plan.sets:
        for kind in layout.tested:
            for other in others:
                found = paired(results.values(kind, name, first), results.values(kind, name, other))
                if found.num > 1:
                    p_values = [_number(found.t_p_value), _number(found.wilcoxon_p_value)]
                    rows.append([name, kind, other, _number(found.mean), f"{found.num_larger}/{found.num}", *p_values])
    if not rows:
        return ""
    header = ["set", "score", "less that of", "mean", "larger", "p, paired t", "p, Wilcoxon"]
    return f"{first}, paired over splits:\n" + aligned(header, rows)


def printed_text(layout: Layout, results: Results[Plan], own: Sequence[str]) -> str:
    """The paper's numbers compared with ours, except for a user's own tables."""
    printed: list[Printed] = [
        entry for entry in read_printed(PRINTED, layout.name) if entry.set in results.plan.sets and entry.set not in own
    ]
    text = beside_printed(printed, lambda name, method, kind: estimate(results.values(kind, name, method)))
    return f"printed in the paper:\n{text}" if text else ""


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"
