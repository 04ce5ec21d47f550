"""Parts of a study, run once each: finished parts are kept in files, and an interrupted call resumes from them."""

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, NamedTuple, Never, TypeVar

from botorch.exceptions.errors import ModelFittingError
from tqdm import tqdm

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.cli.running import one_sentence
from gp_ensembles.files.replacing import write_json

FAILURES = (ValueError, ArithmeticError, RuntimeError, MemoryError, ModelFittingError)
Key = tuple[object, ...]
Plan = TypeVar("Plan")


class Record(NamedTuple):
    """A finished part.

    Attributes:
        settings: What it was made with; a record made with other settings is not read back.
        scores: Its scores by name.
        curves: Its curves by name.
    """

    settings: dict[str, object]
    scores: dict[str, float]
    curves: dict[str, list[float]]


class Spread(NamedTuple):
    """A score over repetitions."""

    median: float
    lowest: float
    highest: float


class Results(Generic[Plan]):
    """What came of a plan, by part: a part's key says what was run, its last entry which repetition it is.

    Args:
        plan: The study's plan.
        fields: Names of the entries of a key, for instance ``("set", "method", "split")``.
        num_repetitions: Repetitions of everything: splits, draws, folds or seeds.

    Attributes:
        records: Finished parts by key.
        failures: Why parts failed, by key.
        notes: Sentences for the reader of the table.

    Example:
        >>> results = Results(None, ("method", "split"), 2)
        >>> results.records["exact", 1] = Record({}, {"error": 0.5}, {})
        >>> results.values("error", "exact"), results.mean("error", "exact"), results.rows(["error"])
        ([nan, 0.5], 0.5, [['exact', 1, 0.5]])
    """

    def __init__(self, plan: Plan, fields: Sequence[str], num_repetitions: int) -> None:
        self.plan = plan
        self.fields = tuple(fields)
        self.num_repetitions = num_repetitions
        self.records: dict[Key, Record] = {}
        self.failures: dict[Key, str] = {}
        self.notes: list[str] = []

    def found(self, *group: object) -> dict[int, Record]:
        """Finished repetitions of a group, by number."""
        keys = {number: (*group, number) for number in range(self.num_repetitions)}
        return {number: self.records[key] for number, key in keys.items() if key in self.records}

    def values(self, kind: str, *group: object) -> list[float]:
        """A score of a group, one for each repetition; NaN where it is missing."""
        found = self.found(*group)
        return [
            found[number].scores.get(kind, math.nan) if number in found else math.nan
            for number in range(self.num_repetitions)
        ]

    def known(self, kind: str, *group: object) -> list[float]:
        """A score of a group, for the repetitions that have it."""
        return [value for value in self.values(kind, *group) if not math.isnan(value)]

    def mean(self, kind: str, *group: object) -> float:
        """Its mean over the repetitions that have it; NaN if there is none."""
        return mean_of(self.values(kind, *group))

    def deviation(self, kind: str, *group: object) -> float:
        """Its standard deviation over repetitions; NaN for fewer than two."""
        known = self.known(kind, *group)
        return statistics.stdev(known) if len(known) > 1 else math.nan

    def spread(self, kind: str, *group: object) -> Spread | None:
        """Its median and range over repetitions; ``None`` if there is none."""
        known = self.known(kind, *group)
        return Spread(statistics.median(known), min(known), max(known)) if known else None

    def rows(self, kinds: Sequence[str]) -> list[list[object]]:
        """A line for each finished part: its key, then these scores; NaN where it has no such score."""
        return [[*key, *(record.scores.get(kind, math.nan) for kind in kinds)] for key, record in self.records.items()]

    def summary(self, kinds: Sequence[str], *group: object) -> dict[str, object] | None:
        """Means and standard deviations of a group, its number of finished parts; ``None`` if it has none."""
        there = [kind for kind in kinds if self.known(kind, *group)]
        if not there:
            return None
        return {
            **dict(zip(self.fields[:-1], group, strict=True)),
            f"{self.fields[-1]}s": len(self.found(*group)),
            "mean": {kind: self.mean(kind, *group) for kind in there},
            "deviation": {kind: self.deviation(kind, *group) for kind in there},
        }

    def failure_lines(self) -> list[str]:
        """The failures for the eye."""
        lines = []
        for (*group, number), reason in self.failures.items():
            where = ", ".join(str(entry) for entry in group)
            if isinstance(number, int) and number >= 0:
                where += f", {self.fields[-1]} {number + 1}"
            lines.append(f"{where} failed: {reason}")
        return lines

    def failed(self) -> list[dict[str, object]]:
        """The failures for a JSON file."""
        return [{**dict(zip(self.fields, key, strict=True)), "reason": why} for key, why in self.failures.items()]


class Parts:
    """Runs the parts of a study; made by :func:`running`."""

    def __init__(self, results: Results[Plan], folder: Path, bar: "tqdm[Never]") -> None:
        self._results = results
        self._folder = folder
        self._bar = bar

    def run(self, key: Key, name: str, settings: dict[str, object], make: Callable[[], Record], label: str) -> None:
        """Make a part, or read it back; one that fails is noted, and the next may go on.

        Args:
            key: Where it belongs.
            name: Of its file.
            settings: What it is made with; a file with other settings is made again.
            make: Makes it.
            label: What the progress bar says.
        """
        self._bar.set_postfix_str(label)
        try:
            self._results.records[key] = kept_or_made(self._folder / f"{name}.json", settings, make)
        except FAILURES as error:
            self._results.failures[key] = one_sentence(error)
        self._bar.update()

    def skip(self, keys: Sequence[Key], reason: str, num_parts: int) -> None:
        """Note that parts cannot be run."""
        self._results.failures.update(dict.fromkeys(keys, reason))
        self._bar.update(num_parts)


@contextmanager
def running(results: Results[Plan], folder: Path, total: int, progress: bool) -> Iterator[Parts]:
    """Run parts inside; an interruption says where the finished ones are.

    Args:
        results: Takes what is finished.
        folder: Folder of the parts; it is made if need be.
        total: How many parts there are.
        progress: Show a progress bar.

    Raises:
        ValueError: If nothing could be run.
        OSError: If the folder cannot be written.
    """
    make_folder(folder)
    with tqdm(total=total, unit="part", disable=not progress) as bar:
        try:
            yield Parts(results, folder, bar)
        except KeyboardInterrupt:
            print(f"studies: finished parts are in {folder}; the same command goes on with them", file=sys.stderr)
            raise
    if not results.records:
        key, reason = next(iter(results.failures.items()))
        raise ValueError(f"nothing could be run; {', '.join(str(entry) for entry in key[:-1])}: {reason}")


def kept_or_made(path: Path, settings: dict[str, object], make: Callable[[], Record]) -> Record:
    """The record in a file, or if there is none that fits, one that is made and written there.

    Args:
        path: The file.
        settings: What it must have been made with.
        make: Makes it.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "run.json"
        >>> _ = kept_or_made(path, {"seed": 0}, lambda: Record({"seed": 0}, {"error": 0.5}, {}))
        >>> kept_or_made(path, {"seed": 0}, lambda: 1 / 0).scores
        {'error': 0.5}
    """
    record = kept_record(path, settings)
    if record is None:
        record = make()
        write_json(path, record._asdict())
    return record


def kept_record(path: Path, settings: dict[str, object]) -> Record | None:
    """The record in a file; ``None`` if there is none, it cannot be read, or it was made with other settings.

    Example:
        >>> kept_record(Path("no such file"), {}) is None
        True
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["settings"] != settings:
            return None
        scores = {name: float(value) for name, value in content["scores"].items()}
        curves = {name: numbers(values) for name, values in content["curves"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Record(settings, scores, curves)


def numbers(values: Sequence[float | str]) -> list[float]:
    """Numbers from JSON, in which NaN and infinity are strings."""
    return [float(value) for value in values]


def mean_of(values: Sequence[float]) -> float:
    """The mean of the numbers that there are; NaN if there is none.

    Example:
        >>> mean_of([1.0, math.nan, 2.0])
        1.5
    """
    there = [value for value in values if not math.isnan(value)]
    return sum(there) / len(there) if there else math.nan
