"""Commands killed at every operation on files and at random moments, on full disks and with the power cut.

``python -m attacks kills`` runs each command of :mod:`attacks.jobs` on a tiny table: once unharmed, and once for each
operation on files that it does, with a fault there. Then it does what a user would do, and what is in the folder at
the end must be what the unharmed run has left, to the byte. Random kills follow, chains of them among these.
"""

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import NamedTuple, final

from tqdm import tqdm

from attacks.children import kill_after, run_in_child, start
from attacks.faults import KILLED, Count, Full, Kill, PowerCut
from attacks.jobs import Job, contents, make_jobs, names
from attacks.telling import Table, Telling
from gp_ensembles.files.operations import Watcher, watched
from gp_ensembles.files.replacing import JOURNAL

FAULTS = {
    "kill": "killed before an operation",
    "torn": "killed in the middle of a write",
    "full": "a full disk from an operation on",
    "cut": "power cut before an operation: nothing that was not synced is left",
    "names": "power cut before an operation: names are there, contents that were not synced are not",
}
_LONGEST_CHAIN = 3  # random kills of one run and of what goes on with it


class Fall(NamedTuple):
    """A run that did not survive.

    Attributes:
        job: Its name.
        fault: What was done to it.
        point: Number and kind of the operation, or the seconds.
        problem: What was wrong afterwards.
    """

    job: str
    fault: str
    point: str
    problem: str


@final
class Bench:
    """Jobs with what unharmed runs of them leave, in a folder for the attacks.

    Args:
        place: The folder.
        chosen: Names of jobs; all by default.

    Raises:
        ValueError: If there is no job of a name.
    """

    def __init__(self, place: Path, chosen: Sequence[str] | None = None) -> None:
        self.root, self.reported = place / "disk", place / "told.txt"
        self._earlier = place / "earlier"
        inputs = place / "inputs"
        inputs.mkdir(parents=True)
        jobs: dict[str, Job] = {}
        self._quietly(lambda: jobs.update(make_jobs(inputs)))
        unknown = sorted(set(chosen or ()) - jobs.keys())
        if unknown:
            raise ValueError(f"there is no job {unknown[0]!r}; there are {', '.join(jobs)}")
        self.jobs = {name: job for name, job in jobs.items() if chosen is None or name in chosen}
        self.wanted: dict[str, dict[str, object]] = {}
        self.before: dict[str, dict[str, object]] = {}
        self.names: dict[str, list[str]] = {}
        self.kinds: dict[str, list[str]] = {}
        self.seconds: dict[str, float] = {}
        for name, job in self.jobs.items():
            self._measure(name, job)

    @property
    def out(self) -> Path:
        """Where jobs write."""
        return self.root / "out"

    def _quietly(self, act: Callable[[], object]) -> None:
        with self.reported.open("w") as file, redirect_stdout(file), redirect_stderr(file):
            act()

    def _measure(self, name: str, job: Job) -> None:
        """Run it unharmed, twice, for its results are to be the same."""
        before = job.before
        if before is not None:
            self._expect(lambda: before(self._earlier / name), name)
            self.before[name] = contents(job, self._earlier / name)
        found = []
        for _ in range(2):
            self.lay_out(job)
            count, began = Count(), time.perf_counter()
            with watched(count):
                self._expect(lambda: job.run(self.out), name)
            self.seconds[name] = time.perf_counter() - began
            found.append(contents(job, self.out))
        assert found[0] == found[1], f"{name} is not the same twice"
        self.wanted[name], self.names[name], self.kinds[name] = found[0], names(self.out), count.kinds

    def _expect(self, act: Callable[[], object], name: str) -> None:
        codes: list[object] = []
        self._quietly(lambda: codes.append(act()))
        assert codes == [0], f"{name} fails unharmed: {self.reported.read_text()}"

    def lay_out(self, job: Job) -> None:
        """The folder as it is before the command."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        if job.before is not None:
            shutil.copytree(self._earlier / job.name, self.out)

    def fault(self, job: Job, fault: str, place: int) -> str | None:
        """Harm a run at an operation and recover; returns what is wrong afterwards, if anything is."""
        self.lay_out(job)
        watcher: Watcher
        if fault in ("kill", "torn"):
            watcher = Kill(place, torn=fault == "torn")
        elif fault == "full":
            watcher = Full(place)
        else:
            watcher = PowerCut(place, self.root, keeps_names=fault == "names")

        def harmed() -> int:
            with watched(watcher):
                return job.run(self.out)

        code = run_in_child(harmed, self.reported)
        if fault != "full" and code != KILLED:
            return f"the run was to be killed and ended with {code}: {self._last_words()}"
        if fault == "full" and (problem := self._full_disk_problem(job, code)) is not None:
            return problem
        return self.recover(job)

    def _full_disk_problem(self, job: Job, code: int) -> str | None:
        """What is wrong about a run that met a full disk; one that ends well must say which picture or page lacks."""
        if code == 0:
            lacks = set(self.names[job.name]) - set(names(self.out))
            is_told = "No space left on device" in self.reported.read_text()
            return f"{', '.join(lacks)} lacks without a word" if lacks and not is_told else None
        lines = [line for line in self.reported.read_text().splitlines() if "error:" in line or "Error" in line]
        if code != 2 or len(lines) != 1:
            return f"a full disk ended it with {code}: {self._last_words()}"
        if str(self.root) not in lines[0] or "No space left on device" not in lines[0]:
            return f"a full disk is not told of with its file: {lines[0]}"
        return None

    def recover(self, job: Job) -> str | None:
        """Look at what is left, do what a user would do, and look again; returns what is wrong, if anything is."""
        earlier = self.before.get(job.name)
        if earlier is not None and not (self.out / JOURNAL).exists():
            found = _contents_if_whole(job, self.out)
            if found not in (earlier, self.wanted[job.name]):
                return "earlier results are neither intact nor replaced"
        is_marked = self.is_marked(job)
        code = run_in_child(lambda: job.again(self.out), self.reported)
        if code != 0 and _contents_if_whole(job, self.out) != self.wanted[job.name]:
            if is_marked or job.again is job.run:
                return f"it cannot be gone on with ({code}): {self._last_words()}"
            code = run_in_child(lambda: job.run(self.out), self.reported)
            if code != 0:
                return f"it cannot be restarted ({code}): {self._last_words()}"
        return self.verdict(job)

    def verdict(self, job: Job) -> str | None:
        """What is wrong about the results, if anything is."""
        if _contents_if_whole(job, self.out) != self.wanted[job.name]:
            return "the results differ from those of an unharmed run"
        more = sorted(set(names(self.out)) - set(self.names[job.name]))
        return f"{', '.join(more)} was left behind" if more else None

    def is_marked(self, job: Job) -> bool:
        """Whether the command must be able to go on."""
        if job.mark is None:
            return job.before is not None and job.again is not job.run
        mark = self.out / job.mark
        if (self.out / JOURNAL).exists():
            return True
        if not mark.exists():
            return False
        return job.before is None or mark.read_bytes() != (self._earlier / job.name / job.mark).read_bytes()

    def _last_words(self) -> str:
        lines = self.reported.read_text().strip().splitlines()
        return lines[-1] if lines else "nothing was said"


def _contents_if_whole(job: Job, out: Path) -> dict[str, object] | None:
    try:
        return contents(job, out)
    except (OSError, ValueError):
        return None


def faults_at_points(
    bench: Bench, kinds: Sequence[str], every: int, start_at: int
) -> Iterator[tuple[str, str, str, str | None]]:
    """Harm all jobs at every so many operations; yields job, fault, kind of operation, and what was wrong."""
    for name, job in bench.jobs.items():
        for fault in kinds:
            for place, kind in enumerate(bench.kinds[name]):
                if (place + start_at) % every or (fault == "torn" and kind != "write"):
                    continue
                yield name, fault, f"{place} {kind}", bench.fault(job, fault, place)


def random_kills(bench: Bench, runs: int, seed: int) -> Iterator[tuple[str, str, str, str | None]]:
    """Kill jobs at random moments; yields job, how often it was killed in a row, the seconds, and what was wrong."""
    draw = random.Random(seed)
    jobs = list(bench.jobs.values())
    num_kills = number = 0
    while num_kills < runs:
        job = jobs[number % len(jobs)]
        number += 1
        bench.lay_out(job)
        code, when, killed = 0, "", 0
        for _ in range(min(_LONGEST_CHAIN, runs - num_kills)):
            seconds = draw.uniform(0, bench.seconds[job.name])
            going_on = bool(killed) and (bench.is_marked(job) or job.mark is None)
            act = job.again if going_on else job.run
            code = kill_after(start(partial(act, bench.out), bench.reported), seconds)
            if code >= 0:
                break
            killed += 1
            when += f" {seconds:.3f} s"
            if draw.random() < 0.5:
                break
        if killed:
            num_kills += killed
            yield job.name, f"{killed} random", when.strip(), bench.recover(job)


def main(argv: Sequence[str]) -> int:
    """Run the attack; returns 0 if all runs have survived, 1 if one has not, 2 for bad options."""
    telling = Telling("kills", __doc__)
    options = telling.options
    options.add_argument("--runs", type=int, default=200, help="random kills")
    options.add_argument("--every", type=int, default=1, help="harm every so many operations; 0 for none")
    options.add_argument("--offset", type=int, default=0, help="which of these")
    options.add_argument("--seed", type=int, default=0, help="of random kills")
    options.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS), help="at operations")
    options.add_argument("--jobs", nargs="+", default=None, help="names of commands; all by default")
    values = telling.read(argv)
    tried: Counter[tuple[str, str]] = Counter()
    by_kind: Counter[str] = Counter()
    falls: list[Fall] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            bench = Bench(Path(folder), values.jobs)
        except ValueError as error:
            options.error(str(error))
        at_points = faults_at_points(bench, values.faults, values.every, values.offset) if values.every else iter(())
        for name, fault, point, problem in tqdm(at_points, "at operations"):
            tried[name, fault] += 1
            by_kind[point.split()[1]] += 1
            if problem is not None:
                falls.append(Fall(name, fault, point, problem))
        kills = random_kills(bench, values.runs, values.seed)
        for name, fault, point, problem in tqdm(kills, "at random"):
            tried[name, "random"] += int(fault.split()[0])
            if problem is not None:
                falls.append(Fall(name, fault, point, problem))
    telling.tell(*_tables(tried, by_kind, falls), tried=sum(tried.values()), survived=sum(tried.values()) - len(falls))
    return 1 if falls else 0


def _tables(tried: Counter[tuple[str, str]], by_kind: Counter[str], falls: Sequence[Fall]) -> list[Table]:
    """Commands by fault, and operations on files, survived of tried; and what has fallen."""
    lost = Counter((fall.job, "random" if "random" in fall.fault else fall.fault) for fall in falls)
    lost_by_kind = Counter(fall.point.split()[1] for fall in falls if "random" not in fall.fault)
    faults = [fault for fault in (*FAULTS, "random") if any(fault == other for _, other in tried)]

    def cell(job: str, fault: str) -> str:
        number = tried[job, fault]
        return f"{number - lost[job, fault]} of {number}" if number else "-"

    by_command = [[job, *(cell(job, fault) for fault in faults)] for job in dict.fromkeys(job for job, _ in tried)]
    tables = [Table("Survived of tried, by command", ["command", *faults], by_command)]
    if by_kind:
        rows = [[kind, f"{number - lost_by_kind[kind]} of {number}"] for kind, number in sorted(by_kind.items())]
        tables.append(Table("By the operation at which the fault was", ["operation", "survived"], rows))
    return [*tables, Table("What has fallen", Fall._fields, falls)] if falls else tables
