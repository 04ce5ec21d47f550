"""Every part of a table, a set, a method and a split, run once: what is finished stands in a file and is read back."""

import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from botorch.exceptions.errors import ModelFittingError
from tqdm import tqdm

from gp_ensembles.cli.sentences import one_sentence
from gp_ensembles.cli.torch_files import fingerprint
from gp_ensembles.cli.writing import make_folder
from studies.harness.parts import Record, kept_or_made
from studies.maskerade.methods import METHODS
from studies.maskerade.predictions import scored
from studies.maskerade.sets import Holdout, Split, load_sample, split_sample

_VERSION = 1  # of everything that scores depend on besides the data; a new number makes old files worthless
_FAILURES = (ValueError, ArithmeticError, RuntimeError, MemoryError, ModelFittingError)


class Plan(NamedTuple):
    """What is to be run.

    Attributes:
        sets: Names of the sets.
        methods: Names of the methods.
        holdout: How test rows are chosen.
        parts: How many splits of each set.
        evaluations: Likelihoods that a method may spend on a part.
        seed: Seed of the first part; the next ones count on from it.
    """

    sets: Sequence[str]
    methods: Sequence[str]
    holdout: Holdout
    parts: int
    evaluations: int
    seed: int


class Scores(NamedTuple):
    """What came of a plan.

    Attributes:
        plan: The plan.
        records: By set, method and part, what is finished.
        failures: What could not be run, and why, by the same key (part -1 where a whole set failed).
        notes: What was done to the sets.
    """

    plan: Plan
    records: dict[tuple[str, str, int], Record]
    failures: dict[tuple[str, str, int], str]
    notes: list[str]

    def values(self, name: str, method: str, kind: str) -> list[float]:
        """A score of a method on a set, one for each part that has it."""
        found = (self.records.get((name, method, part)) for part in range(self.plan.parts))
        return [record.scores[kind] for record in found if record is not None and kind in record.scores]

    def mean(self, name: str, method: str, kind: str) -> float:
        """Its mean over parts; NaN if there is none."""
        values = self.values(name, method, kind)
        return sum(values) / len(values) if values else math.nan

    def deviation(self, name: str, method: str, kind: str) -> float:
        """Its standard deviation over parts; NaN for fewer than two."""
        values = self.values(name, method, kind)
        return statistics.stdev(values) if len(values) > 1 else math.nan


def run_plan(plan: Plan, data: Path, folder: Path, progress: bool) -> Scores:
    """Run what is not in the folder yet, a file for each set, method and part.

    An interruption from the keyboard leaves the files of finished parts; the same call goes on from there.

    Args:
        plan: What to run.
        data: Folder of the sets with a manifest.
        folder: Folder of the parts; it is made if need be.
        progress: Show a progress bar.

    Raises:
        ValueError: If nothing could be run.
        OSError: If the folder cannot be written, or the sets' folder cannot be read.
    """
    make_folder(folder)
    scores = Scores(plan, {}, {}, [])
    total = len(plan.sets) * plan.parts * len(plan.methods)
    with tqdm(total=total, unit="part", disable=not progress) as bar:
        for name in plan.sets:
            try:
                sample = load_sample(data, name)
            except ValueError as error:
                scores.failures[name, "all methods", -1] = one_sentence(error)
                bar.update(plan.parts * len(plan.methods))
                continue
            for part in range(plan.parts):
                split = split_sample(sample, plan.holdout.choose(len(sample.table.y), part, plan.seed))
                scores.notes.extend(note for note in split.notes if note not in scores.notes)
                for method in plan.methods:
                    bar.set_postfix_str(f"{name}, {method}, part {part + 1} of {plan.parts}")
                    _run_part(scores, (name, method, part), split, folder)
                    bar.update()
    if not scores.records:
        (name, method, _), reason = next(iter(scores.failures.items()))
        raise ValueError(f"nothing could be run; {name}, {method}: {reason}")
    return scores


def _run_part(scores: Scores, key: tuple[str, str, int], split: Split, folder: Path) -> None:
    name, method, part = key
    plan = scores.plan
    path = folder / f"{name}-{plan.holdout.key}-{part}-{method}-{plan.evaluations}-seed{plan.seed}.json"
    settings: dict[str, object] = {
        "version": _VERSION,
        "set": name,
        "split": plan.holdout.title,
        "part": part,
        "method": method,
        "evaluations": plan.evaluations,
        "seed": plan.seed,
        "data": fingerprint(split.X, split.y, split.test_X, split.test_y),
    }
    try:
        scores.records[key] = kept_or_made(
            path, settings, lambda: _ran(method, split, plan.evaluations, plan.seed + part, settings)
        )
    except _FAILURES as error:
        scores.failures[key] = one_sentence(error)


def _ran(method: str, split: Split, evaluations: int, seed: int, settings: dict[str, object]) -> Record:
    clock = time.perf_counter()
    answer = METHODS[method].run(split, evaluations, torch.Generator().manual_seed(seed))
    found = scored(answer.posterior, split)
    cost = {"seconds": time.perf_counter() - clock, "evaluations": float(answer.evaluations)}
    return Record(settings, found | cost | answer.diagnostics, answer.curves)
