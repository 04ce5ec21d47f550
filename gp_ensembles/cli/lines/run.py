"""A stream of lines from start to end: answers on the standard output, the rest in a folder."""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gp_ensembles.cli.lines.protocol import LineError, read_line
from gp_ensembles.cli.lines.session import LineSession
from gp_ensembles.cli.out_folder import make_writable
from gp_ensembles.cli.writing import CHECKPOINT, SUMMARY
from gp_ensembles.files.replacing import write_json

_REPORTED = 5  # unusable lines that are reported one by one


@dataclass(frozen=True)
class LineOutput:
    """Output settings of a stream of lines.

    Attributes:
        out: Its folder.
        identity: Name of the id in lines.
        checkpoint_seconds: Seconds between checkpoints.
        from_start: Whether lines come from a file, which may have been read before.
    """

    out: Path
    identity: str = "id"
    checkpoint_seconds: float = 30.0
    from_start: bool = False


def run_lines(session: LineSession, lines: Iterable[str], answers: IO[str], output: LineOutput) -> dict[str, object]:
    """Answer lines until they end, and save what was learned."""
    make_writable(output.out)
    saved, reported, is_heard = time.monotonic(), None, True
    names = session.options.features
    if names is not None and session.options.time is not None:
        names = tuple(dict.fromkeys((*names, session.options.time)))
    try:
        for number, text in _unread(session, lines, output):
            session.count_line()
            try:
                answer = session.take(read_line(text, session.target, output.identity, names))
            except LineError as error:
                session.refuse()
                _report(session.tally.num_malformed, number, str(error))
                continue
            if session.problem not in (None, reported):
                print(f"gp-ensembles: line {number}: the warm-up goes on: {session.problem}", file=sys.stderr)
            reported = session.problem
            if answer is not None:
                if "refused" in answer:
                    _report(session.tally.num_malformed, number, answer["refused"])
                answers.write(json.dumps(answer, allow_nan=False) + "\n")
                answers.flush()
            if session.has_just_started or time.monotonic() - saved >= output.checkpoint_seconds:
                session.has_just_started = False
                session.save(output.out / CHECKPOINT)
                saved = time.monotonic()
    except BrokenPipeError:
        is_heard = False
    finally:
        session.save(output.out / CHECKPOINT)
        summary = {**session.summary(), "answers_were_read": is_heard}
        write_json(output.out / SUMMARY, summary)
    return summary


def _unread(session: LineSession, lines: Iterable[str], output: LineOutput) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; of a file that is read again, those after the last one read."""
    num_seen = 0
    for number, text in enumerate(lines, start=1):
        if number == 1 and output.from_start:
            num_seen = session.open_source(text)
            if num_seen:
                print(f"gp-ensembles: the first {num_seen} lines were read before and are skipped", file=sys.stderr)
        if number > num_seen:
            yield number, text


def closing_line(summary: dict[str, object], output: LineOutput) -> str:
    """Text printed at the end on the standard error; the standard output holds answers only."""
    bad = summary["lines_malformed"]
    parts = [
        f"{summary['rows']} rows answered",
        f"{summary['rows_scored']} scored" + (f" ({summary['log_score']:.4f} nats)" if summary["log_score"] else ""),
        f"{summary['rows_waiting']} pending",
        f"{bad} unusable line{'s' * (bad != 1)}",
    ]
    if summary["rows_given_up"]:
        parts.insert(3, f"{summary['rows_given_up']} given up")
    return f"{', '.join(parts)}; resume from {output.out / CHECKPOINT}"


def _report(num_malformed: int, number: int, problem: str) -> None:
    if num_malformed <= _REPORTED:
        more = "; later ones are only counted" if num_malformed == _REPORTED else ""
        print(f"gp-ensembles: line {number}: {problem}{more}", file=sys.stderr)
