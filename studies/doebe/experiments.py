"""Experiments of the paper on dynamic ensembles of basis expansions."""

from collections.abc import Sequence
from functools import partial

from gp_ensembles.ensembles.targets import BinaryTarget
from studies.doebe.changes import CHANGED_SETS, run_changes
from studies.doebe.design import FAMILIES, THREE, Design
from studies.doebe.methods import Averaging, Method, e_doebe, family_methods, whole_methods
from studies.doebe.pictures import (
    draw_deltas,
    draw_error_curves,
    draw_log_score_curves,
    draw_nmse_curves,
    draw_samples,
    draw_scores,
)
from studies.doebe.sets import BANANA_SETS, COLLAPSE_SETS, MAIN_SETS, SAMPLES_SETS, UCI_SETS
from studies.doebe.study import Table, run_table
from studies.doebe.tables import classes_text, curves_text, ensembles_text, sample_name, samples_text, scores_text
from studies.doebe.weights import run_weights
from studies.harness.experiment import Experiment, Paper, Size

DELTAS = (1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2)
NUM_SAMPLES_C = 10
_PROTOCOL = "Scales and hyperparameters from the first 1 000 rows, every later row predicted before it is learned."
_PUBLISHED = (
    "the authors' choices: their starts, evidence, frequencies, walks and Q, no row of the warm-up learned, centers "
    "trained, and scores of E-DOEBE by weights that have seen the target"
)
_SCORES = {"": draw_scores}
_CURVES = {"_nmse": draw_nmse_curves, "_log_score": draw_log_score_curves}
_WITH_FAMILIES = (*family_methods(THREE), *whole_methods())


def _samples_methods() -> tuple[Method, ...]:
    return tuple(
        Method(sample_name(f"DOE-{title}", number), Averaging(), False, True, (family,), number)
        for family, title in (("hsgp", "HSGP"), ("rff", "RFF"))
        for number in (1, NUM_SAMPLES_C)
    )


TABLES = (
    Table(
        "experiment-1", "families, static (OE) and dynamic (DOE)", MAIN_SETS, tuple(family_methods()), Design(FAMILIES),
        scores_text, _SCORES,
    ),
    Table(
        "experiment-3", "ensembles of several families, static and dynamic", MAIN_SETS, _WITH_FAMILIES, Design(THREE),
        ensembles_text, _SCORES,
    ),
    Table(
        "appendix-a", "classes: banana, shuffled and from left to right", BANANA_SETS,
        (*family_methods(THREE), e_doebe()), Design(THREE, num_fourier=30, target=BinaryTarget(), perturbed=THREE),
        classes_text, {"": draw_scores, "_error": draw_error_curves}, is_classes=True,
    ),
    Table(
        "appendix-c", "ten samples of the hyperparameters against the optimum alone (table 3)", SAMPLES_SETS,
        _samples_methods(), Design(("hsgp", "rff"), num_samples=NUM_SAMPLES_C), samples_text, {"": draw_samples},
    ),
    Table(
        "appendix-d", "probability of a switch in E-DOEBE", MAIN_SETS,
        tuple(e_doebe(delta, f"delta {delta:g}") for delta in DELTAS), Design(THREE), scores_text, {"": draw_deltas},
    ),
    Table(
        "appendix-e", "500 features and 100 rows of warm-up", UCI_SETS, tuple(family_methods(("hsgp", "rff"))),
        Design(("hsgp", "rff"), num_features=500, num_warmup=100), scores_text, _SCORES,
    ),
    Table(
        "appendix-f", "families along the stream", MAIN_SETS, tuple(family_methods()), Design(FAMILIES), curves_text,
        _CURVES, is_along=True,
    ),
    Table(
        "appendix-g", "ensembles of several families along the stream", MAIN_SETS,
        (*family_methods(THREE), e_doebe()), Design(THREE), curves_text, _CURVES,
        is_along=True,
    ),
    Table(
        "appendix-h", "random and optimized frequencies", MAIN_SETS, tuple(family_methods(("rff", "off"))),
        Design(("rff", "off"), perturbed=("rff", "off")), scores_text, _SCORES,
    ),
)  # fmt: skip
_TRIALS = {"appendix-c": 100, "appendix-d": 1}


def _experiment(table: Table) -> Experiment:
    protocol = _PROTOCOL.replace("1 000", "100") if table.design.num_warmup == 100 else _PROTOCOL
    return Experiment(
        table.name,
        table.title,
        protocol,
        partial(run_table, table),
        Size(_TRIALS.get(table.name, 10)),
        Size(1, 600 if table.is_classes else 1500),
        table.sets,
        tuple(method.name for method in table.methods),
        "" if table.is_classes else _PUBLISHED,
    )


def _experiments(tables: Sequence[Table]) -> tuple[Experiment, ...]:
    collapse = Experiment(
        "experiment-2",
        "collapse of weights (figure 3 and table 2)",
        "One static and one dynamic Hilbert-space expert under three weight rules, after a warm-up of 1 000 rows.",
        run_weights,
        Size(1),
        Size(1, 3000),
        COLLAPSE_SETS,
        published=_PUBLISHED,
    )
    changes = Experiment(
        "table-2-changes",
        "which of the authors' choices makes table 2",
        "Experiment 2 the authors' way with one choice changed at a time, and our way with one of theirs.",
        run_changes,
        Size(1),
        Size(1, 3000),
        CHANGED_SETS,
    )
    made = [_experiment(table) for table in tables]
    return (made[0], collapse, changes, *made[1:])


PAPER = Paper(
    "doebe",
    "Waxman, Djuric: Dynamic Online Ensembles of Basis Expansions. TMLR 2024",
    _experiments(TABLES),
)
