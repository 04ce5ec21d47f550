"""Every part of figure 7, a set and a run and a draw, made once: what is finished is read back from a file."""

import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from gp_ensembles.cli.neighbors import neighbor_error
from gp_ensembles.cli.sentences import one_sentence
from gp_ensembles.cli.torch_files import fingerprint
from gp_ensembles.cli.writing import make_folder
from gp_ensembles.data import Table
from studies.harness.parts import Record, kept_or_made
from studies.ie_gplvm.methods import CONSTANTS, METHODS, RUNS, Effort, LatentMethod, LatentTask
from studies.ie_gplvm.sets import START_SHARES, LatentRows, shuffled_rows

_VERSION = 1  # of everything that scores depend on besides the data; a new number makes old files worthless
_FAILURES = (ValueError, ArithmeticError, RuntimeError, MemoryError)


class LatentPlan(NamedTuple):
    """What is to be run.

    Attributes:
        tables: The sets by name.
        methods: Names of the methods, in the order of the table.
        draws: Runs of each method.
        seed: Seed of the first draw; the next ones count on from it.
        max_rows: Most rows of a set; all if ``None``.
        effort: How hard methods try.
    """

    tables: Mapping[str, Table]
    methods: Sequence[str]
    draws: int
    seed: int
    max_rows: int | None
    effort: Effort


class Spread(NamedTuple):
    """A score over the draws."""

    median: float
    lowest: float
    highest: float


Key = tuple[str, str, int]


class LatentScores(NamedTuple):
    """What came of a plan.

    Attributes:
        plan: The plan.
        records: By set, run and draw, what is finished.
        failures: What could not be run, and why, by the same key.
    """

    plan: LatentPlan
    records: dict[Key, Record]
    failures: dict[Key, str]

    def found(self, name: str, method: str) -> list[tuple[int, Record]]:
        """Finished draws of a method on a set, by number."""
        run = METHODS[method].run
        there = ((draw, self.records.get((name, run, draw))) for draw in range(self.plan.draws))
        return [(draw, record) for draw, record in there if record is not None]

    def spread(self, name: str, method: str, score: str) -> Spread | None:
        """A score of a method on a set; ``None`` if no draw is finished."""
        values = [record.scores[score] for _, record in self.found(name, method)]
        return Spread(statistics.median(values), min(values), max(values)) if values else None


def error_of(method: LatentMethod) -> str:
    """Under which name the record of its run has the error of a method."""
    return f"error_{method.reading}"


def run_gplvm(plan: LatentPlan, folder: Path, progress: bool) -> LatentScores:
    """Run what is not in the folder yet, a file for each set, run and draw.

    An interruption from the keyboard leaves the files of finished parts; the same call goes on from there.

    Args:
        plan: What to run.
        folder: Folder of the parts; it is made if need be.
        progress: Show a progress bar.

    Raises:
        ValueError: If nothing could be run.
        OSError: If the folder cannot be written.
    """
    make_folder(folder)
    scores = LatentScores(plan, {}, {})
    runs = list(dict.fromkeys(METHODS[method].run for method in plan.methods))
    with tqdm(total=len(plan.tables) * plan.draws * len(runs), unit="run", disable=not progress) as bar:
        for name, table in plan.tables.items():
            for draw in range(plan.draws):
                try:
                    rows = shuffled_rows(table, START_SHARES[name], plan.seed + draw, plan.max_rows)
                except ValueError as error:
                    scores.failures.update(dict.fromkeys(((name, run, draw) for run in runs), one_sentence(error)))
                    bar.update(len(runs))
                    continue
                for run in runs:
                    bar.set_postfix_str(f"{name}, {run}, draw {draw + 1} of {plan.draws}")
                    _run_part(scores, (name, run, draw), rows, folder)
                    bar.update()
    if not scores.records:
        (name, run, _), reason = next(iter(scores.failures.items()))
        raise ValueError(f"nothing could be run; {run} on {name}: {reason}")
    return scores


def _run_part(scores: LatentScores, key: Key, rows: LatentRows, folder: Path) -> None:
    name, run, draw = key
    plan = scores.plan
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
    path = folder / ("-".join([*(str(value) for value in settings.values()), *["places"] * pictured]) + ".json")
    settings |= {"pictured": pictured, "data": fingerprint(rows.Y, rows.label), "num_start": rows.num_start}
    settings |= CONSTANTS.get(run, {})
    try:
        task = LatentTask(rows, plan.seed + draw, plan.effort)
        scores.records[key] = kept_or_made(path, settings, lambda: _ran(run, task, settings))
    except _FAILURES as error:
        scores.failures[key] = one_sentence(error)


def _ran(run: str, task: LatentTask, settings: dict[str, object]) -> Record:
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
