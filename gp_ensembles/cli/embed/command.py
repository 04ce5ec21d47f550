"""The command ``embed``: a few coordinates for each row of many entries, as the rows come, and a picture of them."""

import sys
import time
from contextlib import closing
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser, Namespace

from gp_ensembles.cli.embed.options import EmbedOptions, Variant, expert_names, prepare
from gp_ensembles.cli.embed.rows import Selection, read_rows
from gp_ensembles.cli.embed.run import PICTURE, EmbedFolder, EmbedRun, load_run
from gp_ensembles.cli.embed.summary import report_run, summarize_run
from gp_ensembles.cli.error_messages import drawn_if_possible
from gp_ensembles.cli.running import progress_bar
from gp_ensembles.cli.tables import split_names
from gp_ensembles.cli.writing import CHECKPOINT
from gp_ensembles.ensembles.interrupts import uninterrupted
from gp_ensembles.numerics.devices import check_device
from gp_ensembles.tables.numbers import number_in

_DATA = (
    "a CSV file (.csv or .csv.gz) with a header, empty cells for what was not observed; a .npz file with an array X \
and, if need be, labels y; a .npy file; name:SET for a table that travels with a package; with --data_folder, the name \
of a set in that folder's manifest"
)
_CONFIG = "YAML file with any of the options that say how to embed, such as warmup and variant"
_ABOUT = {
    "warmup": "rows at the start that are embedded together, without gaps; a tenth by default, at least 50",
    "num_latent": "dimensions of the embedding",
    "num_frequencies": "frequencies of each expert",
    "stay": "probability of no switch before a row, for the switching variants",
    "random_walk_ratio": "variance of a step relative to the prior's, for the dynamic variants",
    "block_size": "rows embedded at once: more is faster, and each knows less by the others of its block",
    "num_starts": "nearest neighbors from which the place of a row is searched; 1 is the paper's algorithm",
    "batch_iterations": "most iterations of the fit to the warm-up rows",
    "capacity": "most rows kept to find neighbors in, a uniform sample beyond; more than 100000 need faiss",
    "seed": "seed of all randomness",
    "device": "where the model runs: cpu, cuda, cuda:1",
    "standardize": "divide columns by their warm-up deviations; by default for tables, not for array files",
    "drop_constant": "leave out columns that are constant in the warm-up rows",
    "max_rows": "read so many rows only",
}


def add_options(name: str, parser: ArgumentParser) -> None:
    """Give a parser the options of the command."""
    parser.add_argument("data", type=str, help=_DATA)
    parser.add_argument("--data_folder", type=Path | None, default=None, help="a folder with a manifest.json")
    parser.add_argument("--label", type=str | None, default=None, help="column that says what a row is; not embedded")
    parser.add_argument("--features", type=str | None, default=None, help="columns to embed, comma-separated")
    parser.add_argument("--resume", type=bool, default=False, help="go on with the interrupted run in --out")
    parser.add_argument("--config", action="config", help=_CONFIG)
    start = EmbedOptions()
    types: dict[str, object] = {
        "warmup": int | None, "num_latent": int, "num_frequencies": int, "stay": float, "random_walk_ratio": float,
        "block_size": int, "num_starts": int, "batch_iterations": int, "capacity": int, "seed": int,
        "device": str, "standardize": bool | None, "drop_constant": bool,
        "max_rows": int | None,
    }  # fmt: skip
    for name, kind in types.items():
        parser.add_argument(f"--{name}", type=kind, default=getattr(start, name), help=_ABOUT[name])
    parser.add_argument("--variant", type=Variant, default=start.variant, help="how the experts and weights change")
    dtypes = Literal["float64", "float32"]
    parser.add_argument("--dtype", type=dtypes, default=start.dtype, help="precision of the model")
    parser.add_argument("--pictures", type=bool, default=True, help="draw pictures (needs matplotlib)")
    parser.add_argument("--checkpoint_seconds", type=float, default=30.0, help="between checkpoints")


def run_command(name: str, values: Namespace) -> int:
    """Embed the rows of a table and write everything down; print the table of qualities.

    Files are ``embeddings.csv``, ``weights.csv``, ``summary.json``, ``checkpoint.pt``, ``embedding.png`` and, where
    there are gaps, ``imputed.csv`` in the folder ``values.out``.

    Returns:
        Exit code, 0 for success, 130 after an interruption.

    Raises:
        ValueError: If the rows cannot be embedded, or ``--resume`` finds a run of other rows or options.
        NumericalError: If the model breaks down; what came before is in the checkpoint.
        OSError: If a file cannot be read or written.
    """
    options = EmbedOptions(**{field.name: values[field.name] for field in fields(EmbedOptions)})
    check_device(options.device)
    selection = Selection(values.label, split_names(values.features), options.max_rows)
    prepared = prepare(read_rows(values.data, selection, values.data_folder), options)
    num_empty = int((~prepared.present).sum())
    if num_empty:
        many = "1 row has" if num_empty == 1 else f"{num_empty} rows have"
        print(f"gp-ensembles: {many} no value and get no coordinates", file=sys.stderr)
    if not prepared.rows.is_array and all(number_in(name) is not None for name in prepared.rows.names):
        print("gp-ensembles: all column names are numbers; is the first row a header?", file=sys.stderr)
    checkpoint = values.out / CHECKPOINT
    run = None
    try:
        folder = EmbedFolder(values.out, keeps_previous=not values.resume)
        run = load_run(checkpoint, prepared) if values.resume else EmbedRun.start(prepared)
        _embed_all(run, folder, values)
        summary = summarize_run(run)
        folder.finish(run, summary, partial(_show, run, values.pictures))
    except KeyboardInterrupt:
        print(f"gp-ensembles: {_interrupted(run, checkpoint)}", file=sys.stderr)
        return 130
    print(report_run(summary, values.out))
    return 0


def _embed_all(run: EmbedRun, folder: EmbedFolder, values: Namespace) -> None:
    names = expert_names()
    with uninterrupted():
        folder.begin(run)
    try:
        saved = time.monotonic()
        with progress_bar("embed", len(run.prepared.Y), values.progress, run.progress.num_done) as bar:
            while not run.is_complete:
                bar.update(run.advance())
                folder.append(run)
                bar.set_postfix_str(names[run.model.best_expert], refresh=False)
                if time.monotonic() - saved >= values.checkpoint_seconds:
                    folder.checkpoint(run)
                    saved = time.monotonic()
    finally:  # what was learned survives any failure
        with closing(folder):
            folder.append(run)
            folder.checkpoint(run)


def _interrupted(run: EmbedRun | None, checkpoint: Path) -> str:
    if run is None:
        return "interrupted before the warm-up rows were learned; nothing is kept"
    done, total = run.progress.num_done, len(run.prepared.Y)
    return f"interrupted after {done} of {total} rows; the same command with --resume goes on from {checkpoint}"


def _show(run: EmbedRun, is_wanted: bool, place: Path) -> None:
    if is_wanted:
        drawn_if_possible("pictures", lambda: _draw(run, place))


def _draw(run: EmbedRun, out: Path) -> None:
    from gp_ensembles.plots import plot_embedding, save_figure

    labels, names = run.prepared.rows.labels, expert_names()
    drawn = labels.drawn(run.prepared.present) if labels is not None else None
    title = f"{Path(run.prepared.rows.name).name}, {names[run.model.best_expert]}"
    name = labels.name if labels is not None else ""
    weights = run.found.log_weights
    figure = plot_embedding(run.one_space(), drawn, log_weights=weights, names=names, label_name=name, title=title)
    save_figure(figure, out / PICTURE)
