"""Commands on tiny tables that are attacked, what a user does when one was killed, what must be there at the end."""

import csv
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from gp_ensembles.cli import scored_stream
from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.line_session import LineSession
from gp_ensembles.cli.out_folder import run_folder
from gp_ensembles.cli.running import exit_code
from studies.arena.storage import save_arrays
from studies.harness.parts import Record, Results, running
from studies.harness.report import write_report

ROWS, FIRST_ROWS, CHUNK_ROWS, NUM_LINES = 47, 34, 8, 23
_CONFIG = "ensemble: {like: oebe, bases: [LinearBasis]}\nwarmup: 20\n"
_OTHER = "ensemble: {like: doebe, bases: [LinearBasis]}\nwarmup: 20\nseed: 3\n"
_QUICK = ["--progress", "false"]
_PLAIN = [*_QUICK, "--report", "false"]
_OFTEN = ["--checkpoint_seconds", "0"]
_SECONDS = ("fit_seconds", "microseconds_per_row")  # cells that differ from run to run


class Job(NamedTuple):
    """A command into a folder.

    Attributes:
        name: What tables of attacks call it.
        run: Runs it into a folder; returns its exit code.
        again: What a user does once it was killed; returns the exit code, 2 where there is nothing to go on with.
        tables: Files that must be the same, to the byte, after any kill and what follows.
        before: Puts earlier results into the folder, before the command is run.
        mark: A file that is the command's own from the moment on at which ``again`` must succeed; ``None`` if the
            command itself is run again.
    """

    name: str
    run: Callable[[Path], int]
    again: Callable[[Path], int]
    tables: tuple[str, ...]
    before: Callable[[Path], object] | None = None
    mark: str | None = None


def make_jobs(place: Path) -> dict[str, Job]:
    """The jobs, by name; their inputs are written into ``place``."""
    torch.set_num_threads(1)
    scored_stream.CHUNK_ROWS = CHUNK_ROWS
    whole, first = place / "whole.csv", place / "first.csv"
    rows = [[f"{3 * math.sin(k):.5f}", f"{5 + 0.01 * k + math.cos(k):.5f}"] for k in range(ROWS)]
    _write_table(whole, ["a", "y"], rows)
    _write_table(first, ["a", "y"], rows[:FIRST_ROWS])
    (place / "config.yaml").write_text(_CONFIG)
    (place / "other.yaml").write_text(_OTHER)
    stopped = place / "stopped"

    def stream(table: Path, config: str, *options: str) -> Callable[[Path], int]:
        given = ["stream", str(table), "--target", "y", "--config", str(place / config), *_OFTEN]
        return lambda out: main([*given, "--out", str(out), *(options or _PLAIN)])

    def resumed(*options: str) -> Callable[[Path], int]:
        given = ["resume", str(whole), "--skip_seen", "true", *_OFTEN, *(options or _PLAIN)]
        return lambda out: main([*given, "--checkpoint", str(out / "checkpoint.pt"), "--out", str(out)])

    def elsewhere(out: Path) -> int:
        given = ["resume", str(whole), "--checkpoint", str(stopped / "checkpoint.pt"), "--skip_seen", "true"]
        return main([*given, *_OFTEN, "--out", str(out), *_PLAIN])

    def compare(out: Path) -> int:
        configs = [str(place / "config.yaml"), str(place / "other.yaml")]
        return main(["compare", str(whole), "--target", "y", "--configs", *configs, "--out", str(out), *_QUICK])

    def forecast(out: Path) -> int:
        given = ["forecast", "--checkpoint", str(stopped), "--horizon", "3", "--num_paths", "20", "--paths", "true"]
        return main([*given, "--out", str(out), *_QUICK, "--pictures", "false"])

    def answered(name: str, first_line: int, out: Path, *options: str) -> int:
        reported = place / f"{name}.jsonl"
        reported.write_text("".join(f'{{"a": {a}, "y": {y}}}\n' for a, y in rows[first_line:NUM_LINES]))
        given = [name, str(reported), "--format", "jsonl", *options, *_OFTEN]
        return main([*given, "--out", str(out)])

    def lines(out: Path) -> int:
        return answered("stream", 0, out, "--target", "y", "--config", str(place / "config.yaml"))

    def later_lines(out: Path) -> int:
        checkpoint = out / "checkpoint.pt"
        done = LineSession.load(checkpoint).tally.num_rows
        return answered("resume", done, out, "--checkpoint", str(checkpoint))

    code = stream(first, "config.yaml")(stopped)
    assert code == 0, f"the stream that is resumed ended with {code}"
    streamed, prepared = ("predictions.csv", "weights.csv"), stream(whole, "config.yaml")
    shown = [*_QUICK]
    earlier = stream(whole, "other.yaml")
    jobs = [
        Job("stream", prepared, resumed(), streamed, mark="checkpoint.pt"),
        Job("stream over results", prepared, resumed(), streamed, earlier, mark="checkpoint.pt"),
        Job(
            "stream with a report",
            stream(whole, "config.yaml", *shown),
            resumed(*shown),
            streamed,
            mark="checkpoint.pt",
        ),
        Job("resume in place", resumed(), resumed(), streamed, stream(first, "config.yaml")),
        Job("resume elsewhere", elsewhere, resumed(), streamed, mark="checkpoint.pt"),
        Job("compare", compare, compare, ("compare.csv",), compare),
        Job("forecast", forecast, forecast, ("forecast.csv", "paths.csv", "summary.json"), forecast),
        Job("lines", lines, later_lines, ("summary.json",), mark="checkpoint.pt"),
        Job("study", study, study, ("table.csv", "table.txt", "rows.npz"), study),
    ]
    return {job.name: job for job in jobs}


def study(out: Path) -> int:
    """What all studies write, on nothing that takes time: finished parts, arrays, tables."""
    return exit_code("studies", [], lambda _: _study(out), "what was finished is kept")


def _study(out: Path) -> int:
    with run_folder(out):
        results = Results(None, ("method", "split"), 3)
        with running(results, out / "runs", 3, False) as parts:
            for split in range(3):
                settings: dict[str, object] = {"split": split}
                made = Record(settings, {"error": split / 3}, {})
                parts.run(("plain", split), f"plain-{split}", settings, partial(Record, *made), "plain")
        scores = torch.tensor(results.values("error", "plain"), dtype=torch.float64, device="cpu")
        save_arrays(out / "rows.npz", {"error": scores.numpy()})
        write_report(out / "table", str(scores.mean()), (["error"], results.rows(["error"])), {"scores": 1}, {})
    return 0


def contents(job: Job, out: Path) -> dict[str, object]:
    """What must be the same: the bytes of tables, or their cells but for times."""
    found: dict[str, object] = {}
    for name in job.tables:
        path = out / name
        if name == "compare.csv":
            with path.open(newline="") as file:
                rows = list(csv.DictReader(file))
            found[name] = [{key: cell for key, cell in row.items() if key not in _SECONDS} for row in rows]
        elif job.name == "lines":
            found[name] = {key: cell for key, cell in json.loads(path.read_text()).items() if key not in _SECONDS}
        elif name.endswith(".npz"):
            found[name] = path.stat().st_size  # the archive holds the time
        else:
            found[name] = path.read_bytes()
    for path in out.glob("*.json"):
        json.loads(path.read_text())
    return found


def names(out: Path) -> list[str]:
    """All that a folder holds."""
    return sorted(str(path.relative_to(out)) for path in out.rglob("*"))


def _write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([header, *rows])
