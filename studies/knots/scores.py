"""Every part of a table, a method and a split, run once: what is finished stands in a file and is read back."""

import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from botorch.exceptions.errors import ModelFittingError
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.cli.sentences import one_sentence
from gp_ensembles.cli.torch_files import fingerprint
from gp_ensembles.cli.writing import make_folder
from gp_ensembles.data import Table
from gp_ensembles.metrics import aukl, log_score, median_mnlp, sample_srmse
from gp_ensembles.numerics import normal
from studies.harness.records import Record, kept_or_made
from studies.knots.methods import METHODS, KnotAnswer, KnotTask
from studies.knots.sets import SETS, KnotSplit, split_rows

SCORES = ("knots", "mnlp", "mnlp_twice", "mean_nlp", "srmse", "aukl_f", "aukl_y", "objective", "seconds")
EXACT = "FGP"
_VERSION = 2  # of everything that scores depend on besides the data; a new number makes old files worthless
_FAILURES = (ValueError, ArithmeticError, RuntimeError, MemoryError, ModelFittingError)


class KnotPlan(NamedTuple):
    """What is to be run.

    Attributes:
        dataset: Name of the set, one of :data:`~studies.knots.sets.SETS`.
        methods: Names of the methods, in the order of the table.
        splits: How many splits.
        max_knots: Most knots of a selection.
        seed: Seed of the first split; the next ones count on from it.
    """

    dataset: str
    methods: Sequence[str]
    splits: int
    max_knots: int
    seed: int


class KnotScores(NamedTuple):
    """What came of a plan.

    Attributes:
        plan: The plan.
        records: By method and split, what is finished.
        failures: What could not be run, and why, by the same key.
    """

    plan: KnotPlan
    records: dict[tuple[str, int], Record]
    failures: dict[tuple[str, int], str]

    def values(self, method: str, kind: str) -> list[float]:
        """A score of a method, one for each split that has it."""
        found = (self.records.get((method, split)) for split in range(self.plan.splits))
        return [record.scores[kind] for record in found if record is not None and kind in record.scores]

    def mean(self, method: str, kind: str) -> float:
        """Its mean over splits; NaN if there is none."""
        values = self.values(method, kind)
        return sum(values) / len(values) if values else math.nan

    def deviation(self, method: str, kind: str) -> float:
        """Its standard deviation over splits; NaN for fewer than two."""
        values = self.values(method, kind)
        return statistics.stdev(values) if len(values) > 1 else math.nan


def run_knots(plan: KnotPlan, table: Table, folder: Path, progress: bool) -> KnotScores:
    """Run what is not in the folder yet, a file for each method and split.

    An interruption from the keyboard leaves the files of finished parts; the same call goes on from there.

    Args:
        plan: What to run.
        table: The rows of its set.
        folder: Folder of the parts; it is made if need be.
        progress: Show a progress bar.

    Raises:
        ValueError: If nothing could be run.
        OSError: If the folder cannot be written.
    """
    make_folder(folder)
    scores = KnotScores(plan, {}, {})
    with tqdm(total=plan.splits * len(plan.methods), unit="part", disable=not progress) as bar:
        for split in range(plan.splits):
            try:
                rows = split_rows(table, SETS[plan.dataset].train_share, plan.seed + split)
            except ValueError as error:
                scores.failures["all methods", split] = one_sentence(error)
                bar.update(len(plan.methods))
                continue
            for method in plan.methods:
                bar.set_postfix_str(f"{method}, split {split + 1} of {plan.splits}")
                _run_part(scores, (method, split), rows, folder)
                bar.update()
            _compare(scores, split, rows)
    if not scores.records:
        (method, _), reason = next(iter(scores.failures.items()))
        raise ValueError(f"nothing could be run; {method}: {reason}")
    return scores


def predictions(record: Record, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means and variances of the function at the test rows, and the noise variance, from a finished part."""
    mean, variance, noise = (like.new_tensor(record.curves[name]) for name in ("mean", "variance", "noise"))
    return mean, variance, noise


def found_knots(record: Record, num_inputs: int, like: Tensor) -> Tensor:
    """Knots of a finished part, shape (K, D)."""
    return like.new_tensor(record.curves["knots"]).reshape(-1, num_inputs)


def _run_part(scores: KnotScores, key: tuple[str, int], rows: KnotSplit, folder: Path) -> None:
    method, split = key
    plan = scores.plan
    path = folder / f"{plan.dataset}-{split}-{method}-{plan.max_knots}-seed{plan.seed}.json"
    settings: dict[str, object] = {
        "version": _VERSION,
        "set": plan.dataset,
        "split": split,
        "method": method,
        "max_knots": plan.max_knots,
        "seed": plan.seed,
        "data": fingerprint(*rows),
    }
    try:
        start = _start(scores, key, rows)
        if start is not None:
            settings["start"] = fingerprint(start)
        task = KnotTask(rows, plan.max_knots, start, torch.Generator().manual_seed(plan.seed + split))
        scores.records[key] = kept_or_made(path, settings, lambda: _ran(method, task, settings))
    except _FAILURES as error:
        scores.failures[key] = one_sentence(error)


def _start(scores: KnotScores, key: tuple[str, int], rows: KnotSplit) -> Tensor | None:
    """Knots of the method that this one begins with.

    Raises:
        ValueError: If there are none.
    """
    method, split = key
    other = METHODS[method].needs
    if other is None:
        return None
    record = scores.records.get((other, split))
    if record is None:
        raise ValueError(f"it starts from the knots of {other}, which failed")
    return found_knots(record, rows.X.shape[1], rows.X)


def _ran(method: str, task: KnotTask, settings: dict[str, object]) -> Record:
    clock = time.perf_counter()
    answer = METHODS[method].run(task)
    seconds = time.perf_counter() - clock
    curves = {
        "mean": answer.mean.tolist(),
        "variance": answer.variance.tolist(),
        "noise": [answer.noise],
        "knots": answer.knots.flatten().tolist(),
        **answer.history,
    }
    return Record(settings, scored(answer, task.split.test_y) | {"seconds": seconds}, curves)


def scored(answer: KnotAnswer, y: Tensor) -> dict[str, float]:
    """Scores of a method on the test targets, noise counted once except in ``mnlp_twice``."""
    log_prob = normal.log_prob(y, answer.mean, answer.variance + answer.noise)
    as_published = normal.log_prob(y, answer.mean, answer.variance + 2.0 * answer.noise)
    found = {
        "mnlp": float(median_mnlp(log_prob, y)),
        "mnlp_twice": float(median_mnlp(as_published, y)),
        "mean_nlp": -float(log_score(log_prob, y)),
        "srmse": float(sample_srmse(answer.mean, y)),
        "objective": answer.objective,
    }
    return found | ({"knots": float(len(answer.knots))} if len(answer.knots) else {})


def _compare(scores: KnotScores, split: int, rows: KnotSplit) -> None:
    """The divergence of every model of a split from the full one, if there is one."""
    exact = scores.records.get((EXACT, split))
    if exact is None:
        return
    mean, variance, noise = predictions(exact, rows.y)
    for method in scores.plan.methods:
        record = scores.records.get((method, split))
        if record is not None:
            other = predictions(record, rows.y)
            record.scores["aukl_f"] = float(aukl(mean, variance, *other[:2]))
            record.scores["aukl_y"] = float(aukl(mean, variance, *other[:2], noise=(noise, other[2])))
