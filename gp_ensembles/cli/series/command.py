"""``stream --series`` and ``resume`` of what it left."""

from pathlib import Path

from gp_ensembles.cli.series.run import FLEET, SeriesOutput, SeriesRun, keep_results
from gp_ensembles.cli.tables import TableRequest
from gp_ensembles.files.replacing import PARTIAL
from gp_ensembles.files.together import complete
from gp_ensembles.fleet import Fleet
from gp_ensembles.fleet.checkpoint import HEAD
from gp_ensembles.fleet.model import SMALL
from gp_ensembles.streaming import StreamConfig

_WARM_UP = 200  # rows of each series


def stream_series(
    table: TableRequest, config: StreamConfig | None, settings: StreamConfig, warmup: int | None, output: SeriesOutput
) -> str:
    """Stream a table of many series, and say what came of it.

    Args:
        table: The table; its options name the column of series.
        config: The config that was named; ``None`` for the default ensemble of fleets.
        settings: Seed, precision, device and coverages.
        warmup: Rows of each series from which its scales come.
        output: What to leave behind.

    Raises:
        ValueError: If the table or the config is not fit for it.
    """
    fleet = Fleet(
        SMALL if config is None else config.ensemble,
        warmup=_WARM_UP if warmup is None else warmup,
        coverages=settings.coverages,
        seed=settings.seed,
        dtype=settings.torch_dtype,
        device=settings.device,
    )
    rows = table.open()
    return told(SeriesRun(fleet).run(rows, output), output.out)


def is_of_series(checkpoint: Path) -> bool:
    """Whether a folder, or the folder of a file, holds a fleet."""
    return (_folder(checkpoint) / FLEET / HEAD).exists()


def resume_series(table: TableRequest, checkpoint: Path, output: SeriesOutput, device: str | None = None) -> str:
    """Go on with the series of a folder: a run that was killed with the same table, a complete one with another.

    Args:
        table: The table.
        checkpoint: Folder of the run, or a file in it.
        output: What to leave behind.
        device: Where to go on; where the run was by default.

    Raises:
        ValueError: If the table lacks a column, a file is damaged, or the device is not there.
    """
    folder = _folder(checkpoint)
    complete(folder)
    stopped = SeriesRun.load(folder, device)
    rows = table.reopen_plain(Fleet.notes_in(folder / FLEET)["columns"])
    in_place = output.out.resolve() == folder.resolve()
    is_unfinished = any(path.name.endswith(".csv" + PARTIAL) for path in folder.iterdir())
    if is_unfinished:
        rows.skip(stopped.num_read)
    size = keep_results(folder) if in_place else None
    return told(stopped.run(rows, output, size=size), output.out)


def told(summary: dict[str, object], out: Path) -> str:
    """What the command line says at the end."""
    shown = ("log_score", "coverage")
    scores = ", ".join(
        f"{name} {value:.4g}"
        for name, value in summary.items()
        if name.startswith(shown) and isinstance(value, int | float)
    )
    parts = [
        f"{summary['series']} series of {summary['data']}: {summary['rows']} of {summary['rows_read']} rows predicted"
    ]
    if summary["waiting"]:
        parts.append(f"{summary['waiting']} series have not had their warm-up")
    aside = summary["set_aside"]
    if isinstance(aside, dict) and aside:
        parts.append(f"{len(aside)} series were set aside because an expert failed: {', '.join(list(aside)[:5])}")
    return "\n".join([*parts, scores, *(str(out / name) for name in ("predictions.csv", "series.csv", FLEET))])


def _folder(checkpoint: Path) -> Path:
    return checkpoint if checkpoint.is_dir() else checkpoint.parent
