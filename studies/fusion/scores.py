"""Every part of a figure, a method and a setting and a split, run once: what is finished is read back from a file."""

import math
import statistics
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from gp_ensembles.cli.sentences import one_sentence
from gp_ensembles.cli.torch_files import fingerprint
from gp_ensembles.cli.writing import make_folder
from studies.fusion.methods import METHODS, FusionTask
from studies.fusion.sets import expert_source, made_up_mixture, make_priors, split_mixture
from studies.harness.parts import Record, kept_or_made

_VERSION = 1  # of everything that scores depend on besides the data; a new number makes old files worthless
_FAILURES = (ValueError, ArithmeticError, RuntimeError, MemoryError)


class Setting(NamedTuple):
    """Where a figure has a group of boxes.

    Attributes:
        num_experts: Number of experts K.
        num_frequencies: Number of frequencies M of every function.
        half_width: Inputs are uniform on [-half_width, half_width].
    """

    num_experts: int
    num_frequencies: int
    half_width: float


class FusionPlan(NamedTuple):
    """What is to be run.

    Attributes:
        settings: The figure's groups.
        methods: Names of the methods, in the order of the table.
        splits: How many splits.
        inference: Name of the inference.
        seed: Seed of the made-up rows, splits and frequencies.
        num_rows: How many rows are made up.
    """

    settings: Sequence[Setting]
    methods: Sequence[str]
    splits: int
    inference: str
    seed: int
    num_rows: int


Key = tuple[str, Setting, int]


class FusionScores(NamedTuple):
    """What came of a plan.

    Attributes:
        plan: The plan.
        truth: Mean negative log density under the true mixture, by half width and split.
        records: By method, setting and split, what is finished.
        failures: What could not be run, and why, by the same key.
    """

    plan: FusionPlan
    truth: dict[tuple[float, int], float]
    records: dict[Key, Record]
    failures: dict[Key, str]

    def values(self, method: str, setting: Setting, kind: str) -> list[float]:
        """A score of a method, one for each split; NaN where it is missing."""
        found = (self.records.get((method, setting, split)) for split in range(self.plan.splits))
        return [math.nan if record is None else record.scores.get(kind, math.nan) for record in found]

    def mean(self, method: str, setting: Setting, kind: str) -> float:
        """Its mean over the splits that have it; NaN if there is none."""
        return mean_of(self.values(method, setting, kind))

    def deviation(self, method: str, setting: Setting, kind: str) -> float:
        """Its standard deviation over splits; NaN for fewer than two."""
        there = [value for value in self.values(method, setting, kind) if not math.isnan(value)]
        return statistics.stdev(there) if len(there) > 1 else math.nan


def mean_of(values: Sequence[float]) -> float:
    """The mean of the numbers that there are; NaN if there is none.

    Example:
        >>> mean_of([1.0, math.nan, 2.0])
        1.5
    """
    there = [value for value in values if not math.isnan(value)]
    return sum(there) / len(there) if there else math.nan


def run_fusion(plan: FusionPlan, folder: Path, progress: bool) -> FusionScores:
    """Run what is not in the folder yet, a file for each method, setting and split.

    A model that does not depend on the number of experts or of frequencies is run once for all of them. An
    interruption from the keyboard leaves the files of finished parts; the same call goes on from there.

    Args:
        plan: What to run.
        folder: Folder of the parts; it is made if need be.
        progress: Show a progress bar.

    Raises:
        ValueError: If nothing could be run.
        OSError: If the folder cannot be written.
    """
    make_folder(folder)
    scores = FusionScores(plan, {}, {}, {})
    widths = list(dict.fromkeys(setting.half_width for setting in plan.settings))
    total = len(plan.settings) * len(plan.methods) * plan.splits
    with tqdm(total=total, unit="part", disable=not progress) as bar:
        for width in widths:
            rows = made_up_mixture(width, plan.num_rows, plan.seed)
            for number in range(plan.splits):
                split = split_mixture(rows, plan.seed, number)
                scores.truth[width, number] = split.truth
                experts = expert_source(split, plan.seed, number)
                for setting in (setting for setting in plan.settings if setting.half_width == width):
                    priors = make_priors(rows.X, setting.num_frequencies, plan.seed, number)
                    for method in plan.methods:
                        bar.set_postfix_str(f"{method}, {named(setting)}, split {number + 1} of {plan.splits}")
                        generator = torch.Generator().manual_seed(10_000 * (plan.seed + 1) + number)
                        task = FusionTask(split, setting.num_experts, priors, experts, plan.inference, generator)
                        _run_part(scores, (method, setting, number), task, folder)
                        bar.update()
    if not scores.records:
        (method, setting, _), reason = next(iter(scores.failures.items()))
        raise ValueError(f"nothing could be run; {method}, {named(setting)}: {reason}")
    return scores


def named(setting: Setting) -> str:
    """A setting in words.

    Example:
        >>> named(Setting(3, 30, 1.0))
        'K = 3, M = 30, |x| < 1'
    """
    return f"K = {setting.num_experts}, M = {setting.num_frequencies}, |x| < {setting.half_width:g}"


def _run_part(scores: FusionScores, key: Key, task: FusionTask, folder: Path) -> None:
    method, setting, split = key
    plan, uses = scores.plan, METHODS[method].uses
    settings: dict[str, object] = {
        "version": _VERSION,
        "method": method,
        "experts": setting.num_experts if "num_experts" in uses else 0,
        "frequencies": setting.num_frequencies if "frequencies" in uses else 0,
        "half_width": setting.half_width,
        "split": split,
        "inference": plan.inference if "frequencies" in uses else "none",
        "seed": plan.seed,
        "rows": plan.num_rows,
    }
    path = folder / ("-".join(str(value) for value in settings.values()) + ".json")
    settings["data"] = fingerprint(*task.split[:4])
    try:
        scores.records[key] = kept_or_made(path, settings, lambda: _ran(method, task, settings))
    except _FAILURES as error:
        scores.failures[key] = one_sentence(error)


def _ran(method: str, task: FusionTask, settings: dict[str, object]) -> Record:
    kind = METHODS[method]
    if "experts" in kind.uses:
        task.experts(task.num_experts)  # their training is not in the seconds of what fuses them
    clock = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what they warn of stands in the table
        answer = kind.run(task)
    seconds = time.perf_counter() - clock
    nlpd = -float(answer.log_prob.mean())
    if not math.isfinite(nlpd):
        raise ValueError(f"a density of a test target is not finite: the mean of their logarithms is {-nlpd}")
    return Record(settings, {"nlpd": nlpd, "seconds": seconds, **answer.checks}, {})
