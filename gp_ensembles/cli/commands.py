"""The commands ``stream``, ``resume`` and ``demo`` as plain functions, and the events that their reports count."""

import re
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gp_ensembles.cli.out_folder import make_writable
from gp_ensembles.cli.predictions import MODEL, score_table
from gp_ensembles.cli.report.history import RunHistory
from gp_ensembles.cli.report.page import report_html
from gp_ensembles.cli.running import drawn_if_possible, progress_bar
from gp_ensembles.cli.scored_stream import ScoredStream, take_warm_up
from gp_ensembles.cli.summary import summarize_run, summary_table
from gp_ensembles.cli.writing import CHECKPOINT, OutputFolder
from gp_ensembles.data.synthetic import TARGET, write_messy_load
from gp_ensembles.engine.external_counts import ExternalCounts
from gp_ensembles.files.replacing import write_text
from gp_ensembles.streaming import StreamConfig
from gp_ensembles.streaming.columns import settings_for
from gp_ensembles.streaming.health import failures
from gp_ensembles.tables import RowStream, explain, open_rows

REPORT = "report.html"
_ANOMALIES = {
    "inputs_moved": "inputs far outside the range seen before, moved into it",
    "targets_discounted": "targets far outside all predictions, down-weighted",
    "targets_left_out": "outliers among the warm-up targets, treated as missing",
    "inputs_imputed": "imputed inputs",
    "bad_rows": "rows with an infinite or implausibly large number",
}
_WORDS = {
    "rff": "Fourier features",
    "hsgp": "Hilbert features",
    "rbf kernel": "Gaussian kernel",
    "rbf": "radial functions",
}


@dataclass(frozen=True)
class Output:
    """Output settings of a run."""

    out: Path  # folder of the results
    progress: bool = True  # show a progress bar with the running score
    checkpoint_seconds: float = 30.0  # seconds between checkpoints while the stream is read
    report: bool = True  # write ``report.html``


def stream(rows: RowStream, config: StreamConfig, output: Output) -> dict[str, object]:
    """Fit a model to the first rows of a table, predict and learn the rest, and write all results."""
    warm = take_warm_up(config, rows)  # a refused table leaves no folder behind
    config = settings_for(config, rows.feature_names)
    folder = OutputFolder(output.out)
    started = ScoredStream.start(config, rows, warm, progress=output.progress and sys.stderr.isatty())
    return run(started, rows, folder, output)


def resume(stopped: ScoredStream, rows: RowStream, checkpoint: Path, output: Output) -> dict[str, object]:
    """Continue from a checkpoint."""
    folder = OutputFolder(output.out)
    in_place = output.out.resolve() == checkpoint.resolve().parent
    return run(stopped, rows, folder, output, repeat_pending=in_place and folder.go_on(stopped))


def demo(output: Output) -> dict[str, object]:
    """Write a messy hourly load into the folder of the results, and predict it."""
    make_writable(output.out)
    path = output.out / "load.csv"
    write_messy_load(path)
    rows = open_rows(path, TARGET)
    summary = stream(rows, replace(StreamConfig(), warmup=rows.num_warm_up), output)
    print(f"gp-ensembles stream {path} --target {TARGET}\n\n{explain(rows.encoder, rows.columns)}\n")
    return summary


def run(
    scored: ScoredStream, rows: RowStream, folder: OutputFolder, output: Output, *, repeat_pending: bool = False
) -> dict[str, object]:
    """Feed rows to a stream and write its predictions; what was learned survives any failure."""
    rows_before = scored.num_read
    if scored.history is None or not repeat_pending:
        scored.history = new_history(scored)
    try:
        if not repeat_pending:
            folder.start(scored)
        try:
            _feed(scored, rows, folder, output, repeat_pending)
        except ValueError as error:
            if scored.num_read == rows_before:
                raise
            raise ValueError(
                f"{error}; the rows before it are learned and saved in {folder.path}: fix or remove the row, and "
                f"continue with resume --skip-seen"
            ) from error
        finally:
            if scored.is_whole and scored.num_read > rows_before:
                folder.checkpoint(scored)
        summary = summarize_run(scored, rows.columns, rows_before)
        history = scored.history
        folder.finish(summary, REPORT, lambda place: _draw(history, summary, output, place))
    finally:
        folder.close()
    return summary


def _feed(scored: ScoredStream, rows: RowStream, folder: OutputFolder, output: Output, repeat_pending: bool) -> None:
    """Predict and learn all rows, and append the predictions to the tables."""
    history, saved = scored.history, time.monotonic()
    assert history is not None
    first_row = history.first_row or 0  # rows before it are in the tables of another folder
    again = scored.progress.pending.num_rows if repeat_pending else 0
    total = None if rows.num_rows is None else rows.num_rows - rows.num_given
    with progress_bar("stream", total, output.progress) as bar:
        for chunk in scored.chunks(rows, repeat_pending=repeat_pending):
            folder.append(chunk.tail(max(0, first_row - chunk.first_row)), scored.encoder.clock)
            history.add(chunk, count_events(scored))
            if time.monotonic() - saved >= output.checkpoint_seconds:
                folder.checkpoint(scored)
                saved = time.monotonic()
            scores = score_table({MODEL: scored.scores[MODEL]}, scored.target_scale)[MODEL]
            bar.update(chunk.y.shape[0] - again)
            again = 0
            running = ("log_score", "nmse", "error_rate", "coverage_90")
            names = [name for name in running if name in scores]
            shown: dict[str, object] = {
                name: "-" if (score := scores[name]) is None else f"{score:.4f}" for name in names
            }
            bar.set_postfix(shown, refresh=False)


def _draw(history: RunHistory, summary: dict[str, object], output: Output, place: Path) -> None:
    """Write the report; a failure there costs no numbers."""
    if history.num_rows and output.report:
        drawn_if_possible(REPORT, lambda: write_text(place / REPORT, report_html(summary, history)))


def report(summary: dict[str, object], output: Output) -> str:
    """Text printed after a run: the score table and the paths of its files."""
    page = output.out / REPORT
    lines = [
        f"{summary['model']} with {summary['num_experts']} expert{'s' * (summary['num_experts'] != 1)} on "
        f"{summary['data']}: {summary['rows']} rows predicted, each before its target was revealed",
        summary_table(summary),
        *([str(page)] if output.report and page.exists() else []),
        str(output.out / CHECKPOINT),
    ]
    return "\n".join(lines)


def new_history(scored: ScoredStream) -> RunHistory:
    """An empty history for the next rows of a stream."""
    name, families = scored.model.config.ensemble.name, [family_of(name) for name in scored.model.names]
    history = RunHistory(name, scored.target_name, families, scored.baselines.names, count_events(scored))
    history.first_row = scored.num_read + 1
    return history


@torch.no_grad()
def count_events(scored: ScoredStream) -> dict[str, int]:
    """Event counts of a stream: those of ``AnomalyCounts``, failures, external models."""
    counts = {text: int(getattr(scored.anomaly_counts, name)) for name, text in _ANOMALIES.items()}
    counts["experts quarantined after a failure"] = sum(failure.times for failure in failures(scored.newest))
    activated = [column.activated_at > 0 for column in scored.newest.columns]
    counts["inputs constant during warm-up that have varied since"] = sum(activated)
    online = scored.newest.online
    assert online is not None
    if online.state.external_models is not None:
        absent = ExternalCounts(*online.state.external_models).num_absent.tolist()
        for place, number in zip(online.ensemble.layers.external_models, absent, strict=True):
            counts[f"rows without a prediction of {online.ensemble.expert_names[place]}"] = int(number)
    return counts


def family_of(name: str) -> str:
    """Family of an expert: its name in ``weights.csv`` without numbers and likelihoods of counts, in words."""
    base, _, variance = re.sub(r"(/static)?(/\d+( [a-z -]+)?)?$", "", name).partition("/dynamic ")
    base = re.sub("^(rff|hsgp|rbf kernel|rbf)\\b", lambda found: _WORDS[found[0]], base)
    if not variance:
        return base
    return f"{base}, {'slow' if float(variance) < 3e-4 else 'medium' if float(variance) < 3e-3 else 'fast'} random walk"
