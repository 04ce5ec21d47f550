"""Commands ``stream --series`` and ``resume`` of its folder."""

from pathlib import Path

from gp_ensembles.cli.commands import Output
from gp_ensembles.cli.seen_rows import skip_rows, starts_with
from gp_ensembles.cli.series.run import FLEET, SERIES, Reading, SeriesRun
from gp_ensembles.cli.tables import TableRequest
from gp_ensembles.files.transaction import complete
from gp_ensembles.fleet import Fleet
from gp_ensembles.fleet.calls import SMALL
from gp_ensembles.fleet.checkpoint import HEAD
from gp_ensembles.streaming import StreamConfig

_WARM_UP = 200  # rows of each series


def stream_series(
    table: TableRequest, config: StreamConfig | None, settings: StreamConfig, warmup: int | None, output: Output
) -> str:
    """Stream a table of many series; returns the text to print.

    Raises:
        ValueError: If the table or the config is unsuitable.
    """
    fleet = Fleet(
        SMALL if config is None else config.ensemble,
        warmup=_WARM_UP if warmup is None else warmup,
        coverages=settings.coverages,
        seed=settings.seed,
        dtype=settings.torch_dtype,
        device=settings.device,
    )
    return series_report(SeriesRun(fleet).run(table.open(), output), output.out)


def is_of_series(checkpoint: Path) -> bool:
    """Whether a folder, or the folder of a file, holds a fleet."""
    return (_folder(checkpoint) / FLEET / HEAD).exists()


def check_started(checkpoint: Path) -> None:
    """Raise if a folder holds a run over many series none of which has completed its warm-up."""
    folder = _folder(checkpoint)
    left = (folder / SERIES).exists() or any(folder.glob("predictions.*.csv.partial"))
    if left and not (folder / "checkpoint.pt").exists():
        raise ValueError(
            f"no series of the run in {folder} has completed its warm-up, so there is nothing to continue; run stream "
            f"again"
        )


def resume_series(
    table: TableRequest, checkpoint: Path, output: Output, device: str | None = None, skip_seen: bool | None = None
) -> str:
    """Continue the series of a folder: a killed run with the same table, a complete one with another.

    Raises:
        ValueError: If the table misses a column or is not the one that a killed run was reading, holds rows that were
            read, a file is damaged, or the device does not exist.
    """
    folder = _folder(checkpoint)
    complete(folder)
    stopped = SeriesRun.load(folder, device)
    rows = table.reopen_plain(Fleet.notes_in(folder / FLEET)["columns"])
    in_place = output.out.resolve() == folder.resolve()
    is_unfinished, reading = stopped.is_unfinished(folder), stopped.reading
    if is_unfinished or skip_seen:
        skip_rows(rows, stopped.num_read - reading.before, reading.last)
    elif skip_seen is None and reading.first and starts_with(rows, reading.first):
        raise ValueError(
            f"{rows.name} starts with the rows that the run has read; give --skip-seen to skip them, or "
            f"--skip-seen=false to learn them again"
        )
    else:
        stopped.reading = Reading(before=stopped.num_read)
    if not is_unfinished and rows.is_at_end:
        raise ValueError(f"{rows.name} has no rows that the run has not read; there is nothing to add")
    size = stopped.reopen_table(folder, in_place=in_place, with_new_table=not is_unfinished)
    return series_report(stopped.run(rows, output, size=size), output.out)


def series_report(summary: dict[str, object], out: Path) -> str:
    """Text printed after a run."""
    shown = ("log_score", "coverage")
    scores = ", ".join(
        f"{name} {value:.4g}"
        for name, value in summary.items()
        if name.startswith(shown) and isinstance(value, int | float)
    )
    predicted = f"{summary['rows']} of {summary['rows_read']} rows predicted"
    parts = [f"{summary['series']} series of {summary['data']}: {predicted}"]
    if summary["waiting"]:
        parts.append(f"{summary['waiting']} series are still in their warm-up")
    aside = summary["set_aside"]
    if isinstance(aside, dict) and aside:
        parts.append(f"{len(aside)} series were set aside because an expert failed: {', '.join(list(aside)[:5])}")
    return "\n".join([*parts, scores, *(str(out / name) for name in ("predictions.csv", "series.csv", FLEET))])


def _folder(checkpoint: Path) -> Path:
    return checkpoint if checkpoint.is_dir() else checkpoint.parent
