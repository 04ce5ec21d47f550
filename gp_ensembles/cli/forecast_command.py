"""The command ``forecast``: forecasts after the last row of a run, and backtests of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jsonargparse import ArgumentParser, Namespace
from torch import Tensor

from gp_ensembles.cli.out_folder import make_writable
from gp_ensembles.cli.running import drawn_if_possible
from gp_ensembles.cli.scored_stream import ScoredStream, load_checkpoint
from gp_ensembles.cli.tables import TableRequest
from gp_ensembles.cli.text_tables import as_csv
from gp_ensembles.cli.writing import SUMMARY, checkpoint_of
from gp_ensembles.files.replacing import staged, write_json, write_text
from gp_ensembles.streaming.forecasting.backtest import Backtest, backtest
from gp_ensembles.streaming.forecasting.forecast import Forecast
from gp_ensembles.tables.dates import dates_of
from gp_ensembles.tables.encoder import TableEncoder
from gp_ensembles.tables.raw import RawRows
from gp_ensembles.tables.rows import Rows

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
_BANDS = (0, 2, 3, 4, 6)
_MOST_STEPS = 1_000_000
_RECENT = 3  # times the horizon: rows before it that the plot shows


def add_options(name: str, command: ArgumentParser) -> None:
    """Add the options of the command to a parser."""
    add = command.add_argument
    add("--checkpoint", type=Path, required=True, help="folder of a run, or its checkpoint.pt")
    add("--inputs", type=str | None, default=None, help="a table of the future rows; it needs no target")
    add("--horizon", type=int | None, default=None, help="or the number of future rows, whose inputs are unknown")
    add("--backtest", type=int | None, default=None, help="score forecasts of this many rows on --inputs")
    add("--every", type=int, default=1, help="with --backtest: rows between origins")
    add("--num_paths", type=int, default=500, help="number of sample paths")
    add("--paths", type=bool, default=False, help="write the sample paths to paths.csv")
    add("--pictures", type=bool, default=True, help="draw a plot (needs matplotlib)")
    add("--seed", type=int, default=0, help="seed of the paths")
    add("--device", type=str | None, default=None, help="device to run on; the same as before by default")


def run_command(name: str, values: Namespace) -> int:
    """Run the command; returns its exit code."""
    if values.backtest is not None and values.inputs is None:
        raise ValueError("--backtest scores forecasts on a table with targets; name it with --inputs")
    if values.horizon is not None and values.inputs is not None:
        raise ValueError("--inputs already sets the number of rows; leave out --horizon")
    if values.backtest is None and values.inputs is None and values.horizon is None:
        raise ValueError("give --inputs, a table of the future rows, or --horizon, their number")
    checkpoint = checkpoint_of(values.checkpoint)
    if values.out.resolve() == checkpoint.resolve().parent:
        raise ValueError(f"{values.out} contains the run, whose summary would be overwritten; choose another --out")
    stream = load_checkpoint(checkpoint, device=values.device)
    for _ in stream.chunks(None, repeat_pending=True):
        pass  # rows since the last boundary, learned on a copy of the run
    generator = torch.Generator().manual_seed(values.seed)
    if values.backtest is not None:
        return _backtest(stream, values, generator)
    if values.inputs is None:
        rows = next_rows(stream.encoder, values.horizon)
    else:
        rows = with_rows_between(_all_rows(values.inputs, stream), stream.encoder)
    forecast = stream.newest.forecast(rows.X, num_paths=values.num_paths, generator=generator)
    make_writable(values.out)
    print(_write_forecast(stream, rows, forecast, values))
    return 0


def next_rows(encoder: TableEncoder, horizon: int) -> Rows:
    """The next rows of a table as far as known: time and calendar at the usual step, the rest missing."""
    if horizon < 1:
        raise ValueError(f"--horizon must be at least one row, got {horizon}")
    return encoder.encode(RawRows(encoder.ahead(horizon), None), ".", "the future rows", 1)[1]


def with_rows_between(rows: Rows, encoder: TableEncoder) -> Rows:
    """Future rows with the skipped ones between them, as forecasts advance by the usual step."""
    if rows.steps is None or rows.time is None:
        return rows
    steps = rows.steps.round().clamp_min(1).long()  # a repeated time is one step as well
    if int(steps.max()) == 1:
        return rows
    places = steps.cumsum(0) - 1
    if int(places[-1]) >= _MOST_STEPS:
        raise ValueError(
            f"the future rows reach {int(places[-1]) + 1} usual steps ahead; at most {_MOST_STEPS} can be forecast"
        )
    between = next_rows(encoder, int(places[-1]) + 1)
    assert between.time is not None
    return between._replace(
        X=between.X.index_copy(0, places, rows.X),
        y=between.y.index_copy(0, places, rows.y),
        time=between.time.index_copy(0, places, rows.time),
    )


def _all_rows(data: str, stream: ScoredStream) -> Rows:
    """The rows of a table that follow the run; one at a wrong time is refused, as its step would be forecast anyway."""
    rows = TableRequest(data).reopen(replace(stream.encoder, skips=False))
    if rows.is_at_end:
        raise ValueError(f"{rows.path} has a header but no data rows")
    return Rows.join(list(rows))


def _write_forecast(stream: ScoredStream, rows: Rows, forecast: Forecast, values: Namespace) -> str:
    """Write tables, plot and summary; returns the text to print."""
    clock, num_steps = stream.encoder.clock, forecast.num_steps
    times = None if clock is None or rows.time is None else clock.format(rows.time.tolist())
    quantiles = forecast.quantile(LEVELS)
    head = ["step", *([] if times is None else ["time"]), "mean", "std", *(f"q{100 * level:02.0f}" for level in LEVELS)]
    first = [[str(step + 1), *([] if times is None else [times[step]])] for step in range(num_steps)]
    numbers = torch.cat([torch.stack([forecast.mean, forecast.stddev]), quantiles]).mT.tolist()
    lines = [[*names, *map(repr, values)] for names, values in zip(first, numbers, strict=True)]
    summary = {
        "target": stream.target_name,
        "rows_learned": stream.num_read,
        "steps": num_steps,
        "num_paths": forecast.paths.shape[0],
        "first_time": None if times is None else times[0],
        "last_time": None if times is None else times[-1],
        "inputs_known": float((~rows.X.isnan()).double().mean()),
        "mean": forecast.mean.tolist(),
        "q05": quantiles[0].tolist(),
        "q95": quantiles[-1].tolist(),
    }
    with staged(values.out, removed=["paths.csv", "forecast.png"]) as place:
        write_text(place / "forecast.csv", as_csv(head, lines))
        if values.paths:
            steps = [f"step {step + 1}" for step in range(num_steps)]
            paths = [[str(path + 1), *map(repr, row)] for path, row in enumerate(forecast.paths.tolist())]
            write_text(place / "paths.csv", as_csv(["path", *steps], paths))
        write_json(place / SUMMARY, summary)
        if values.pictures:
            drawn_if_possible("plot", lambda: _draw(stream, rows, forecast, place / "forecast.png"))
    until = "" if times is None else f", {times[0]} to {times[-1]}"
    low, median, high = (f"{float(quantiles[LEVELS.index(level), -1]):.6g}" for level in (0.05, 0.5, 0.95))
    return "\n".join(
        [
            f"{stream.target_name}: {num_steps} rows ahead of the {stream.num_read} learned{until}",
            f"the last row: median {median}, 90 % interval {low} to {high}",
            *_unknown_inputs(stream.encoder, rows),
            str(values.out / "forecast.csv"),
        ]
    )


def _unknown_inputs(encoder: TableEncoder, rows: Rows) -> list[str]:
    """A line that names the columns with unknown values in future rows; none if all are known."""
    unknown = dict(zip(encoder.feature_names, rows.X.isnan().any(0).tolist(), strict=True))
    names = [column.name for column in encoder.columns if any(unknown[name] for name in column.names)]
    if not names:
        return []
    return [f"unknown in some future rows: {', '.join(names)}; give them in a table, --inputs, for a sharper forecast"]


def _draw(stream: ScoredStream, rows: Rows, forecast: Forecast, path: Path) -> None:
    from gp_ensembles.plots.canvas import save_figure
    from gp_ensembles.plots.stream import plot_forecast

    recent = _recent_targets(stream, _RECENT * forecast.num_steps)
    bands = forecast.quantile([LEVELS[place] for place in _BANDS])
    clock, x = stream.encoder.clock, None
    if clock is not None and rows.time is not None:
        before = float(rows.time[0]) - clock.step * np.arange(len(recent), 0, -1)
        x = np.concatenate([before, rows.time.numpy()])
        x = dates_of(x) if clock.is_date else x
    name = "step" if clock is None else clock.name
    figure = plot_forecast(recent, bands, forecast.paths, x=x, target_name=stream.target_name, x_name=name)
    save_figure(figure, path)


def _recent_targets(stream: ScoredStream, most: int) -> Tensor:
    """The last targets kept by the ensemble, in their units; empty if it keeps none."""
    online = stream.newest.online
    history = None if online is None else online.state.history
    if history is None:
        return torch.zeros(0, dtype=torch.float64, device="cpu")
    recent: Tensor = stream.newest.scales.inverse_mean(history.double()).cpu()[-most:]
    return recent


def _backtest(stream: ScoredStream, values: Namespace, generator: torch.Generator) -> int:
    """Score forecasts on the rows of a table that follow the run."""
    horizon, every = values.backtest, values.every
    if horizon < 1 or every < 1:
        raise ValueError(f"--backtest and --every must be at least one row, got {horizon} and {every}")
    rows = with_rows_between(_all_rows(values.inputs, stream), stream.encoder)
    if not bool((~rows.y.isnan()).any()):
        raise ValueError(f"--backtest needs targets, and {values.inputs} has no column {stream.target_name} with any")
    origins = range(0, rows.num_rows - horizon + 1, every)
    if not origins:
        raise ValueError(f"--backtest {horizon} needs at least {horizon} rows, and {values.inputs} has {rows.num_rows}")
    predicted = backtest(stream.newest, rows.X, rows.y, horizon, origins=origins, generator=generator)
    make_writable(values.out)
    print(_write_backtest(predicted, values.out))
    return 0


def _write_backtest(predicted: Backtest, out: Path) -> str:
    """Write scores by horizon; returns the text to print."""
    shares = (0.5, 0.8, 0.9)
    pinball = [predicted.pinball[predicted.levels.index(level)] for level in (0.05, 0.5, 0.95)]
    columns = torch.stack([predicted.crps, *pinball, *(predicted.coverage(share) for share in shares)])
    head = ["step", "crps", "pinball_05", "pinball_50", "pinball_95", "covered_50", "covered_80", "covered_90"]
    lines = [[str(step + 1), *map(repr, row)] for step, row in enumerate(columns.mT.tolist())]
    means = dict(zip(head[1:], columns.nanmean(1).tolist(), strict=True))
    with staged(out) as place:
        write_text(place / "backtest.csv", as_csv(head, lines))
        write_json(place / SUMMARY, {"origins": predicted.origins.shape[0], "steps": len(lines), **means})
    covered = ", ".join(f"{100 * means[f'covered_{100 * share:.0f}']:.1f}" for share in shares)
    return (
        f"{predicted.origins.shape[0]} origins, {len(lines)} rows ahead each: CRPS {means['crps']:.6g}; "
        f"50, 80 and 90 % intervals cover {covered} %\n{out / 'backtest.csv'}"
    )
