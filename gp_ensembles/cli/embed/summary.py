"""What a run of ``embed`` came to: one dictionary for a file, a few lines for the eye."""

from pathlib import Path

import torch

from gp_ensembles.cli.embed.folder import EMBEDDINGS, IMPUTED, PICTURE, SUMMARY, WEIGHTS
from gp_ensembles.cli.embed.options import expert_names
from gp_ensembles.cli.embed.run import EmbedRun
from gp_ensembles.cli.embed.scores import Quality, model_quality, principal_quality
from gp_ensembles.cli.summary import device_name, versions
from gp_ensembles.cli.text_tables import aligned
from gp_ensembles.cli.writing import CHECKPOINT

_SPACES = ("one latent space", "as reported", "principal components")


def summarize_run(run: EmbedRun) -> dict[str, object]:
    """Everything a reader of a run wants to know, in plain containers, fit for JSON.

    Principal components are those of all rows at once, so they have seen the future; gaps are column means to them. All
    rows are mapped back by the model as it is at the end: where its functions walk, it has left the early rows behind.
    """
    prepared, found, best = run.prepared, run.found, run.model.best_expert
    labels, names = prepared.rows.labels, expert_names()
    everywhere = torch.full_like(found.expert, best)
    qualities = (
        model_quality(run, run.one_space(), everywhere),
        model_quality(run, found.embedding, found.expert),
        principal_quality(run)[1],
    )
    streamed = len(prepared.Y) - prepared.warmup
    return {
        "data": prepared.rows.name,
        "rows": len(run.places),
        "rows_without_value": len(run.places) - len(prepared.Y),
        "missing_entries": int(torch.isnan(prepared.Y).sum()),
        "warmup": prepared.warmup,
        "features": list(prepared.rows.names),
        "dropped_constant": list(prepared.dropped),
        "label": labels.name if labels is not None else None,
        "label_kind": None if labels is None else "category" if labels.categories else "quantity",
        "num_categories": len(labels.categories) if labels is not None and labels.categories else None,
        "num_latent": run.model.num_latent,
        "num_experts": run.model.num_experts,
        "experts": names,
        "best_expert": best,
        "log_joint": run.model.log_joint.tolist(),
        "weights": run.model.log_weights.exp().tolist(),
        "spaces": {name: _plain(quality, run) for name, quality in zip(_SPACES, qualities, strict=True)},
        "experts_cut_short_at_start": int((~found.converged[:, 0]).sum()),
        "searches_cut_short": int((~found.converged[:, prepared.warmup :]).sum()),
        "start_seconds": run.progress.start_seconds,
        "stream_seconds": run.progress.stream_seconds,
        "seconds_per_row": run.progress.stream_seconds / streamed if streamed else None,
        "device": device_name(prepared.options.torch_device),
        "num_threads": torch.get_num_threads(),
        "options": prepared.options.plain(),
        "versions": versions(),
    }


def _plain(quality: Quality, run: EmbedRun) -> dict[str, object]:
    by_column = dict(zip(run.prepared.rows.names, quality.rmse.tolist(), strict=True))
    return {
        "neighbor_error": quality.neighbor_error,
        "variance_explained": quality.variance_explained,
        "rmse": by_column,
    }


def report_run(summary: dict[str, object], out: Path) -> str:
    """What the command line says at the end."""
    spaces, weights, experts = summary["spaces"], summary["weights"], summary["experts"]
    best = summary["best_expert"]
    assert isinstance(spaces, dict) and isinstance(weights, list) and isinstance(experts, list)  # noqa: PT018
    assert isinstance(best, int)
    heaviest = weights.index(max(weights))
    has_error = all(space["neighbor_error"] is not None for space in spaces.values())
    header = ["space", "variance explained", *(["1-nn error"] if has_error else [])]
    rows = [
        [name, space["variance_explained"], *([space["neighbor_error"]] if has_error else [])]
        for name, space in spaces.items()
    ]
    empty, missing = summary["rows_without_value"], summary["missing_entries"]
    lines = [
        f"{summary['data']}: {summary['rows']} rows of {_length(summary['features'])} columns in "
        f"{summary['num_latent']} dimension(s), the first {summary['warmup']} together, the others as they came",
        aligned(header, rows),
        f"one latent space: {experts[best]}, of {summary['num_experts']} experts the one with the largest joint "
        f"density of all rows and places; for the next row {experts[heaviest]} has the weight {weights[heaviest]:.3g}",
    ]
    options = summary["options"]
    assert isinstance(options, dict)
    if "dynamic" in options["variant"]:
        lines.append("rows are mapped back by the functions of the end, which have walked on since the early rows")
    if empty or missing:
        lines.append(f"gaps filled: {missing}; rows without a value: {empty}")
    if summary["experts_cut_short_at_start"]:
        lines.append(
            f"{summary['experts_cut_short_at_start']} of {summary['num_experts']} experts had not converged at the "
            f"start; more --batch-iterations may fit better"
        )
    paths = [out / name for name in (EMBEDDINGS, WEIGHTS, IMPUTED, SUMMARY, PICTURE, CHECKPOINT)]
    return "\n".join([*lines, *(str(path) for path in paths if path.exists())])


def _length(names: object) -> int:
    assert isinstance(names, list)
    return len(names)
