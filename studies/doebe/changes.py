"""Ablation of table 2: the authors' way with one choice changed at a time, and our way with one choice of theirs."""

import math
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.metrics import log_score
from studies.doebe.design import Making
from studies.doebe.methods import run_as_published, run_method
from studies.doebe.sets import COLLAPSE_SETS, SourceSet, load_stream, source_sets
from studies.doebe.study import made_of
from studies.doebe.weights import EXCHANGED, KEPT, PRUNED, PUBLISHED_TWINS, TWINS, shared_bases
from studies.harness.experiment import Choices
from studies.harness.parts import Record, Results, running
from studies.harness.report import write_report
from studies.harness.text import aligned

CHANGED_SETS = COLLAPSE_SETS
OUR_WAY = replace(TWINS, scaled_walk=True)
_WORDS = {
    "whole_evidence": ("the whole log determinant", "half the log determinant, 500 steps"),
    "whole_frequencies": ("whole frequencies", "frequencies up to K + 1"),
    "warm_box": ("the box of the warm-up, inputs clamped", "a box of all rows"),
    "conditioned": ("warm-up rows learned", "no warm-up row learned"),
    "scaled_walk": ("the walk scaled to the features", "the walk on every weight"),
}
COLUMNS = (
    "static",
    "dynamic",
    "static z²",
    "pruned BMA",
    "BMA",
    "E-DOEBE, seen",
    "E-DOEBE, moments",
    "E-DOEBE, mixture",
    "lowest weight, log10",
)
_VERSION = 1


def variants() -> dict[str, Making]:
    """Ways to make the two experts, by what they are called.

    Example:
        >>> list(variants())[:2]
        ["the authors' way", "the authors' way, but the whole log determinant"]
    """
    found = {"the authors' way": PUBLISHED_TWINS}
    for field, (ours, _) in _WORDS.items():
        found[f"the authors' way, but {ours}"] = _with(PUBLISHED_TWINS, field, True)
    found["the authors' way, but a start of 0.7 ranges"] = replace(PUBLISHED_TWINS, starts=(0.7,), in_units=False)
    found["our way"] = OUR_WAY
    for field, (_, theirs) in _WORDS.items():
        found[f"our way, but {theirs}"] = _with(OUR_WAY, field, False)
    found["our way, but a start of one unit"] = replace(OUR_WAY, starts=(1.0,), in_units=True)
    assert set(_WORDS) < {field.name for field in fields(Making)}
    return found


def _with(making: Making, field: str, value: bool) -> Making:
    settings: dict[str, Any] = {field: value}
    return replace(making, **settings)


def run_changes(choices: Choices, settings: None) -> str:
    """Run it and write its files; what is finished is read back.

    Args:
        choices: What was chosen of it.
        settings: Nothing.

    Returns:
        The table as text.

    Raises:
        ValueError: If a set is unknown, ``max_rows`` is too small, or nothing could be run.
        OSError: If a set cannot be read, or ``choices.out`` cannot be written.
    """
    sources, notes = source_sets(choices, CHANGED_SETS)
    makings = variants()
    results: Results[None] = Results(None, ("set", "variant", "trial"), 1)
    results.notes += notes
    make_folder(choices.out)
    with running(results, choices.out / "doebe_changes", len(sources) * len(makings), choices.progress) as parts:
        for source in sources:
            for number, (name, making) in enumerate(makings.items()):
                settings_of = made_of(_VERSION, source, choices, choices.seed) | {"making": repr(making)}
                make = partial(_ran, source, making, choices, settings_of)
                label = f"{source.name}, {name}"
                parts.run((source.name, name, 0), f"{source.name}-{number}-{choices.seed}", settings_of, make, label)
    return _report(choices, results)


def _ran(source: SourceSet, making: Making, choices: Choices, settings: dict[str, object]) -> Record:
    stream = load_stream(source, choices.max_rows, choices.seed)
    recording = shared_bases(stream, making)
    y = stream.y

    def mean(values: Tensor) -> float:
        return float(log_score(values, y))

    z = ((y - recording.mean[0]).square() / recording.variance[0])[~torch.isnan(y)]
    honest, pruned = run_method(EXCHANGED, recording), run_method(PRUNED, recording)
    kept = run_method(KEPT, recording)
    scores = [
        mean(recording.log_prob[0]),
        mean(recording.log_prob[1]),
        float(z.mean()),
        mean(pruned.gaussian),
        mean(kept.gaussian),
        mean(run_as_published(EXCHANGED, recording).gaussian),
        mean(honest.gaussian),
        mean(honest.log_prob),
        float(kept.log_weights[1].min()) / math.log(10),
    ]
    return Record(settings, dict(zip(COLUMNS, scores, strict=True)), {})


def _report(choices: Choices, results: Results[None]) -> str:
    header = ["set", "variant", *COLUMNS]
    rows: list[list[object]] = [
        [name, variant, *(record.scores[column] for column in COLUMNS)]
        for (name, variant, _), record in results.records.items()
    ]
    size = "all rows" if choices.max_rows is None else f"{choices.max_rows} rows at most"
    title = f"DOEBE, table-2-changes: mean log scores, nats per row, one choice changed at a time; {size}"
    explained = (
        "static and dynamic: each expert alone; z²: mean squared error over predictive variance, 1 if it is right; BMA "
        "and E-DOEBE by moments but for the last; seen: with weights that have seen the target, as the authors report"
    )
    lines = [title, explained, "", aligned(header, rows), "", *results.notes, *results.failure_lines()]
    content = {"rows": [dict(zip(header, row, strict=True)) for row in rows]}
    return write_report(choices.out / "doebe_table-2-changes", "\n".join(lines).rstrip(), (header, rows), content, {})
