"""The figures of Lu, Karanikolas and Giannakis (2022), Incremental Ensemble Gaussian Processes, made again.

Figures 2, 3 and 4 (error, predictive log-likelihood and running time on real streams) share one set of runs; figures
10 and 11 (regret on synthetic streams) are in :mod:`studies.ie_gp.regret`.
"""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from gp_ensembles.cli.drawing import Curve, Panel, panels_table, save_panels
from gp_ensembles.cli.text_tables import aligned, as_csv
from gp_ensembles.data import Table, folder_names, load_folder
from gp_ensembles.files.checkpoint import fingerprint
from gp_ensembles.files.replacing import write_text
from gp_ensembles.metrics import observed_mean
from gp_ensembles.metrics.scores import running_nmse
from studies.harness.parts import Record, Results, Spread, numbers, running
from studies.harness.plan import check_range
from studies.harness.protocol import Stream, split_stream
from studies.harness.report import write_report
from studies.ie_gp.methods import METHODS, MethodRun, MethodSettings, Start, run_method
from studies.ie_gp.regret import static_figure, switching_figure

# Whether the file's inputs are scaled to [0, 1] already; others are, by the range of the warm-up rows.
DATASETS: Mapping[str, bool] = {
    "toms_hardware": True, "air_quality": True, "twitter_buzz": True, "sarcos_thin10": False,
}  # fmt: skip
_SCORES = ("nmse", "mse_last_1000", "log_score", "worst_row_share", "fit_seconds", "stream_seconds")
_LAST = 1000
_POINTS = 200  # points of a curve that are kept
_NO_SPREAD = Spread(math.nan, math.nan, math.nan)
_UNSETTLED = 50  # a curve begins after this part of the stream: averages over less are noise


class Quantity(NamedTuple):
    """What a figure shows: a curve of the records, what it is, and how far from zero its axis is linear."""

    curve: str
    label: str
    linear_within: float


_FIGURES: Mapping[int, Quantity] = {
    2: Quantity("nmse", "normalized mean squared error so far", 0.0),
    3: Quantity("log_score", "mean log density so far, nats per row", 1.0),
    4: Quantity("seconds", "seconds since the stream began", 0.0),
}
FIGURES = (*_FIGURES, 10, 11)


class Protocol(NamedTuple):
    """The paper's protocol on real streams.

    Attributes:
        num_warmup: Rows for hyperparameters, which are not scored.
        methods: What the paper fixes of the methods.
    """

    num_warmup: int = 1000
    methods: MethodSettings = MethodSettings()


def run(figure: int, data: Path | None, out: Path, *, draws: int, max_rows: int | None, progress: bool) -> str:
    """Make a figure of the paper: a picture, its curves as CSV, every number as JSON.

    What an earlier run in the same folder has finished is read back, as long as it was made with the same settings
    and rows.

    Args:
        figure: 2, 3 or 4 (real streams), 10 or 11 (regret).
        data: Folder with a manifest and the streams; figures 10 and 11 need none.
        out: Folder of the results.
        draws: Draws of the random frequencies, and of the synthetic data; curves and tables show medians.
        max_rows: Most rows of each stream, the warm-up rows included; all by default. Of a synthetic stream, its
            length.
        progress: Show a progress bar.

    Returns:
        The table of the figure, for the eye.

    Raises:
        ValueError: If the figure is unknown, there is no draw, too few rows, or no stream in the folder.
        OSError: If the folders cannot be read or written.

    Example:
        >>> import pathlib, tempfile
        >>> out = pathlib.Path(tempfile.mkdtemp())
        >>> text = run(10, None, out, draws=1, max_rows=40, progress=False)
        >>> sorted(path.name for path in out.iterdir() if path.suffix in (".csv", ".json"))
        ['figure_10.csv', 'figure_10.json']
    """
    if figure not in FIGURES:
        raise ValueError(f"figure {figure} is not among those that can be made again: {', '.join(map(str, FIGURES))}")
    check_range("draws", draws, 1)
    if figure == 10:
        return static_figure(out, draws=draws, num_rows=max_rows, progress=progress)
    if figure == 11:
        return switching_figure(out, draws=draws, num_rows=max_rows, progress=progress)
    if data is None:
        raise ValueError(f"figure {figure} needs the folder of the streams; give it with --data")
    return real_streams(figure, data, out, Protocol(), draws=draws, max_rows=max_rows, progress=progress)


def real_streams(
    figure: int,
    data: Path,
    out: Path,
    protocol: Protocol,
    *,
    draws: int,
    max_rows: int | None = None,
    progress: bool = False,
) -> str:
    """Figures 2, 3 and 4; arguments as in :func:`run`, and the protocol."""
    there = folder_names(data)
    names = [name for name in DATASETS if name in there]
    if not names:
        raise ValueError(f"{data} has none of the streams {', '.join(DATASETS)}; choose another folder")
    results = Results(protocol, ("stream", "method", "draw"), draws)
    with running(results, out / "runs", len(names) * len(METHODS) * draws, progress) as parts:
        for name in names:
            stream, settings = _prepared(load_folder(data, name), protocol, max_rows)
            for method, start in METHODS.items():
                for draw in range(draws):
                    make = partial(_ran, start, stream, protocol, draw, settings)
                    label = f"{name}, {method}, draw {draw + 1} of {draws}"
                    parts.run((name, method, draw), f"{name}_{method}_{draw}", settings, make, label)
    absent = [name for name in DATASETS if name not in there]
    if absent:
        results.notes.append(f"not in the folder: {', '.join(absent)}")
    return _written(figure, out, results, names)


def scaled_stream(table: Table, num_warmup: int) -> Stream:
    """Targets standardized by the warm-up rows; inputs on the file's scale, or scaled by the warm-up rows' range."""
    stream = split_stream(table, num_warmup, drop_constant=True)
    kept = [table.feature_names.index(name) for name in stream.feature_names]
    X = table.X[:, kept]
    if not DATASETS.get(table.name, False):
        lowest, highest = X[:num_warmup].amin(0), X[:num_warmup].amax(0)
        X = (X - lowest) / (highest - lowest)
    return stream._replace(warm_X=X[:num_warmup], X=X[num_warmup:])


def _prepared(table: Table, protocol: Protocol, max_rows: int | None) -> tuple[Stream, dict[str, object]]:
    rows = table.y.shape[0] if max_rows is None else min(max_rows, table.y.shape[0])
    table = table._replace(X=table.X[:rows], y=table.y[:rows])
    settings: dict[str, object] = {
        "num_warmup": protocol.num_warmup,
        **protocol.methods._asdict(),
        "rows": rows,
        "points": _POINTS,
        "data": fingerprint(table.X, table.y),
    }
    return scaled_stream(table, protocol.num_warmup), settings


def _ran(start: Start, stream: Stream, protocol: Protocol, draw: int, settings: dict[str, object]) -> Record:
    return Record(settings, *_scored(run_method(start, stream, protocol.methods, draw), stream))


def _scored(made: MethodRun, stream: Stream) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Scores and curves of a run; squared errors in the file's units where a name does not say otherwise."""
    y = stream.y
    error = torch.where(torch.isnan(y), 0.0, stream.standardizer.inverse_std(y - made.mean).square())
    nmse = running_nmse(made.mean, y)
    seen = torch.arange(1, len(y) + 1, device=y.device).to(y)
    log_score = torch.where(torch.isnan(y), 0.0, made.log_prob).cumsum(0) / (~torch.isnan(y)).cumsum(0)
    scores = {
        "nmse": float(nmse[-1]),
        "mse_last_1000": float(observed_mean(error[-_LAST:], y[-_LAST:])),
        "log_score": float(log_score[-1]),
        "worst_row_share": float(error.max() / error.sum()),
        "fit_seconds": made.fit_seconds,
        "stream_seconds": made.seconds[-1],
    }
    first = len(y) // _UNSETTLED
    at = torch.linspace(first, len(y) - 1, min(_POINTS, len(y) - first), dtype=torch.float64, device=y.device)
    at = at.round().long()
    curves = {
        "rows": seen[at].tolist(),
        "nmse": nmse[at].tolist(),
        "log_score": log_score[at].tolist(),
        "clock_rows": [float(end) for end in made.ends[1:]],
        "seconds": made.seconds[1:],
    }
    return scores, curves


def _written(figure: int, out: Path, results: Results[Protocol], names: list[str]) -> str:
    protocol, draws, quantity = results.plan, results.num_repetitions, _FIGURES[figure]
    keys = [(name, method) for name in names for method in METHODS if results.found(name, method)]
    spreads = {key: {score: results.spread(score, *key) or _NO_SPREAD for score in _SCORES} for key in keys}
    table = [[*key, *(spread[score].median for score in _SCORES)] for key, spread in spreads.items()]
    header = ["stream", "method", *_SCORES]
    full = [f"{score}_{part}" for score in _SCORES for part in Spread._fields]
    rows = [[*key, *(value for score in _SCORES for value in spread[score])] for key, spread in spreads.items()]
    write_text(out / "table.csv", as_csv(["stream", "method", *full], rows))
    panels = []
    for name in names:
        records = {method: list(results.found(name, method).values()) for method in METHODS}
        curves = (_curve(method, found, quantity) for method, found in records.items() if found)
        panels.append(Panel(name, [curve for curve in curves if curve is not None]))
    notes = [f"medians of {draws} draws of the frequencies"]
    if found := spreads.get(("toms_hardware", "IE-GP")):
        ours = found["mse_last_1000"]
        notes.append(
            f"toms_hardware, mean squared error over the last {_LAST} rows: IE-GP {ours.median:.2e} (from "
            f"{ours.lowest:.2e} to {ours.highest:.2e} over the draws); published: a distributed variant 5.39e-04, "
            f"AdaRaker 1.13e-02"
        )
    text = "\n".join([aligned(header, table), *notes, *results.notes, *results.failure_lines()])
    content = {
        "figure": figure,
        "draws": draws,
        "protocol": {"num_warmup": protocol.num_warmup, **protocol.methods._asdict()},
        "runs": {
            name: {method: [record.scores for record in results.found(name, method).values()] for method in METHODS}
            for name in names
        },
        "failures": results.failed(),
    }
    curves_table = panels_table(panels, ["stream", "method", "row"])
    draw = partial(save_panels, panels, x_label="row", y_label=quantity.label, linear_within=quantity.linear_within)
    return write_report(out / f"figure_{figure}", text, curves_table, content, {"": draw})


def _curve(method: str, found: list[Record], quantity: Quantity) -> Curve | None:
    """Median and range over the draws; none for a method that has no such curve."""
    x = numbers(found[0].curves["clock_rows" if quantity.curve == "seconds" else "rows"])
    values = torch.tensor(
        [numbers(record.curves[quantity.curve]) for record in found], dtype=torch.float64, device="cpu"
    )
    if bool(torch.isnan(values).all()):
        return None
    middle = values.quantile(0.5, dim=0)
    return Curve(method, x, middle.tolist(), values.amin(0).tolist(), values.amax(0).tolist())
