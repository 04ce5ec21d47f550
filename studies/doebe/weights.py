"""Experiment 2: one static and one dynamic expert, and what three weight rules make of the dynamic one."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.cli.text_tables import aligned
from gp_ensembles.data import folder_names
from gp_ensembles.ensembles.bases import HilbertBasis
from gp_ensembles.ensembles.build import FitSettings, build_maps, condition, fitted_experts, static_group
from gp_ensembles.files.checkpoint import fingerprint
from gp_ensembles.filters import RandomWalk
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.meta_learners.base import weigh_observed
from studies.doebe.methods import DELTA, PAPER_THRESHOLD, Averaging, Exchange, Rule
from studies.doebe.recording import NUM_FEATURES, WALK
from studies.doebe.sets import DRIFT, load_stream
from studies.harness.parts import Record, kept_or_made, kept_record
from studies.harness.protocol import Stream
from studies.harness.report import write_report

# The first shows what the paper's Figure 3 shows (a thinned SARCOS recording in place of Kuka #1); on the others the
# dynamic expert leads from the start and no rule loses it.
STREAMS = ("sarcos_thin10", "sarcos_ias", "barrett_wam")
RULES: tuple[tuple[str, Rule], ...] = (
    (f"BMA, pruned at {PAPER_THRESHOLD:g}", Averaging(PAPER_THRESHOLD)),
    ("BMA, not pruned", Averaging()),
    (f"E-DOEBE, delta {DELTA:g}", Exchange(DELTA)),
)
_START = 0.7  # starting length scale as a share of each column's range
_BLOCK = 512
_VERSION = 1  # of everything that weights depend on besides the data; a new number makes old files worthless
_COLUMNS = ("min_log10", "at_row", "max_after", "last", "log_score")


class Weights(NamedTuple):
    """The dynamic expert's weight under one rule.

    Attributes:
        rule: Name of the rule.
        log_weight: Log weight of the dynamic expert in force before each target, shape (T,).
        log_score: Mean log density of the mixture, in nats per row of standardized targets.
    """

    rule: str
    log_weight: Tensor
    log_score: float

    def summary(self) -> dict[str, float]:
        """Lowest weight as a power of ten, the row it is met at, the largest weight after it, and the last one."""
        lowest = int(self.log_weight.argmin())
        return {
            "min_log10": float(self.log_weight[lowest]) / math.log(10),
            "at_row": float(lowest + 1),
            "max_after": float(self.log_weight[lowest:].max().exp()),
            "last": float(self.log_weight[-1].exp()),
            "log_score": self.log_score,
        }


def stream_names(data: Path | None) -> list[str]:
    """Names of the streams of this experiment that can be had, the synthetic one last.

    Example:
        >>> stream_names(None)
        ['static_then_drifting']
    """
    present = set() if data is None else set(folder_names(data))
    return [*(name for name in STREAMS if name in present), DRIFT]


def twin_densities(stream: Stream, title: str, progress: bool) -> Tensor:
    """Log densities (2, T) of a static additive Hilbert-space expert and of its twin whose weights walk at random.

    Every weight of the twin takes steps of variance 1e-3, as in the paper.

    Args:
        stream: The stream.
        title: What the progress bar says.
        progress: Show a progress bar.
    """
    X, y = stream.warm_X, stream.warm_y
    basis = HilbertBasis(max(1, NUM_FEATURES // X.shape[1]), starts=(_START,))
    experts = fitted_experts(build_maps(X, [basis], None), X, y, FitSettings(num_samples=1), None, False)
    walking = [(f"{name}/dynamic", expert.with_transition(RandomWalk(WALK))) for name, expert in experts]
    online = condition(X, y, [static_group(experts), walking], BayesianModelAveraging())
    parts = []
    with tqdm(total=len(stream.y), desc=title, unit="row", disable=not progress, leave=False) as bar:
        for rows, targets in stream.blocks(_BLOCK):
            parts.append(online.observe(rows, targets).experts.log_prob.detach())
            bar.update(len(targets))
    return torch.cat(parts, dim=1)


def weigh(log_prob: Tensor) -> list[Weights]:
    """The dynamic expert's weight under each of the three rules.

    Args:
        log_prob: Log densities of the static and the dynamic expert, shape (2, T); NaN where a target is missing.

    Example:
        >>> import torch
        >>> log_prob = torch.zeros(2, 3, dtype=torch.float64)
        >>> log_prob[1, 0] = -50.0  # a bad moment of the dynamic expert
        >>> [round(found.summary()["last"], 3) for found in weigh(log_prob)]
        [0.0, 0.0, 0.02]
    """
    found, missing = [], torch.isnan(log_prob).all(0)
    for name, choice in RULES:
        rule = choice.build(2)
        _, output = weigh_observed(rule, rule.init(2, like=log_prob), log_prob, missing)
        found.append(Weights(name, output.log_weights[1], float(output.log_prob.nansum()) / int((~missing).sum())))
    return found


def draw_weights(log_weights: Mapping[str, Sequence[float]], name: str, path: Path) -> None:
    """The dynamic expert's weight over time, a panel for each rule; as in the paper's Figure 3, rows on a log axis.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import SERIES, label, new_figure

    figure, axes = new_figure(1, len(log_weights), 3.6 * len(log_weights), 2.8)
    for axis, (rule, curve), color in zip(axes, log_weights.items(), SERIES, strict=False):
        axis.plot(range(1, len(curve) + 1), [math.exp(value) for value in curve], color=color, linewidth=1.1)
        label(axis, rule, f"rows of {name} after the warm-up", "weight of the dynamic expert")
        axis.set_xscale("log")
        axis.set_ylim(-0.03, 1.03)
    save_figure(figure, path)


def run_weights(data: Path | None, stem: Path, seeds: int, max_rows: int | None, progress: bool) -> str:
    """Run experiment 2 and write its files, ``stem`` with endings; finished streams are read back.

    Args:
        data: Folder of the robot-arm streams; ``None`` for the synthetic one alone.
        stem: Path of the files without ending; its folder exists.
        seeds: Number of seeds; recorded streams do not depend on it and are run once.
        max_rows: Most rows of a stream, warm-up included; ``None`` for all.
        progress: Show progress bars.

    Returns:
        The table as text.
    """
    rows: list[list[object]] = []
    notes = []
    for name in stream_names(data):
        for seed in range(seeds if name == DRIFT else 1):
            stream = load_stream(name, data, max_rows, seed)
            folder = stem.parent / "doebe_weights"
            make_folder(folder)
            path = folder / f"{name}-seed{seed}.json"
            picture = stem.parent / f"{stem.name}_{name}-seed{seed}.png"
            mark = fingerprint(stream.warm_X, stream.warm_y, stream.X, stream.y)
            settings: dict[str, object] = {"version": _VERSION, "data": mark}
            must_draw = kept_record(path, settings) is None or not picture.exists()
            kept = kept_or_made(path, settings, partial(_ran, stream, name, settings, progress))
            for rule, _ in RULES:
                values: list[object] = [kept.scores[f"{rule}; {key}"] for key in _COLUMNS]
                values[_COLUMNS.index("at_row")] = round(kept.scores[f"{rule}; at_row"])
                rows.append([name, seed, rule, *values])
            try:
                if must_draw:
                    draw_weights({rule: kept.curves[rule] for rule, _ in RULES}, name, picture)
            except ImportError as error:
                notes.append(f"no picture: {error}")
    header = ["stream", "seed", "rule", *_COLUMNS]
    content = {"rows": [dict(zip(header, row, strict=True)) for row in rows]}
    title = "DOEBE, experiment 2: weight of the dynamic one of two additive Hilbert-space experts, after the warm-up"
    text = "\n".join([title, "", aligned(header, rows), *dict.fromkeys(notes)])
    return write_report(stem, text, (header, rows), content, {})


def _ran(stream: Stream, name: str, settings: dict[str, object], progress: bool) -> Record:
    weights = weigh(twin_densities(stream, name, progress))
    scores = {f"{found.rule}; {key}": value for found in weights for key, value in found.summary().items()}
    return Record(settings, scores, {found.rule: found.log_weight.tolist() for found in weights})
