"""Scores of embeddings beside those of principal components, as a dictionary for a file and a table to read."""

from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from gp_ensembles.cli.embed.options import expert_names
from gp_ensembles.cli.embed.rows import Labels
from gp_ensembles.cli.embed.run import EMBEDDINGS, IMPUTED, PICTURE, EmbedRun, map_back
from gp_ensembles.cli.summary import device_name, versions
from gp_ensembles.cli.text_tables import aligned
from gp_ensembles.cli.writing import CHECKPOINT, SUMMARY, WEIGHTS


def neighbor_error(X: Tensor, label: Tensor) -> float:
    """Share of rows whose nearest other row has another label: the leave-one-out error of one nearest neighbor.

    Args:
        X: Places of the rows, shape (N, d).
        label: Labels, shape (N,).

    Raises:
        ValueError: If there are fewer than two rows, or a place is not finite.

    Example:
        >>> X = torch.tensor([[0.0], [1.0], [3.0], [3.5]], dtype=torch.float64, device="cpu")
        >>> neighbor_error(X, torch.tensor([0, 1, 1, 1], dtype=torch.int64, device="cpu"))
        0.5
    """
    if len(X) < 2 or not bool(X.isfinite().all()):
        raise ValueError(f"neighbors need at least two rows and finite places, got {len(X)} rows")
    nearest = NearestNeighbors(n_neighbors=1).fit(X.double().cpu().numpy()).kneighbors(return_distance=False)
    other = label[torch.as_tensor(nearest[:, 0], dtype=torch.int64, device=label.device)]
    return float((other != label).double().mean())


class Quality(NamedTuple):
    """Scores of an embedding.

    Attributes:
        neighbor_error: Share of the labeled rows whose nearest labeled neighbor has another label; ``None`` without
            categories.
        variance_explained: One minus the ratio of the squared errors of rows mapped back to their squared distances
            from the column means, observed entries only, in the units of the model.
        rmse: Root mean squared error of each column, in units of the data, shape (D,); NaN where nothing was observed.
    """

    neighbor_error: float | None
    variance_explained: float
    rmse: Tensor


def principal_quality(run: EmbedRun) -> tuple[Tensor, Quality]:
    """Principal components of all rows at once, gaps filled by column means: scores (n, d) and their quality."""
    Y = run.prepared.Y.double()
    mean = Y.nanmean(0)
    centered = torch.where(torch.isnan(Y), 0.0, Y - mean)
    num_latent = run.model.num_latent
    if len(Y) < Y.shape[1]:
        axes = torch.linalg.svd(centered, full_matrices=False).Vh[:num_latent].mT
    else:
        axes = torch.linalg.eigh(centered.mT @ centered).eigenvectors[:, -num_latent:].flip(-1)
    scores = centered @ axes
    return scores, _quality(run, scores, scores @ axes.mT + mean)


def model_quality(run: EmbedRun, X: Tensor, expert: Tensor) -> Quality:
    """Quality of latent inputs (n, d), each in the space of its expert (n,), by the model as it is now."""
    mean, _ = map_back(run, X, expert)
    return _quality(run, X, mean.double())


def _quality(run: EmbedRun, X: Tensor, back: Tensor) -> Quality:
    Y = run.prepared.Y.double()
    squares, spread = (back - Y).square(), (Y - Y.nanmean(0)).square()
    explained = 1.0 - float(squares.nansum() / spread.nansum())
    rmse = squares.nanmean(0).sqrt() * run.prepared.scale
    return Quality(labeled_error(run.prepared.rows.labels, X, run.prepared.present), explained, rmse)


def labeled_error(labels: Labels | None, X: Tensor, present: Tensor) -> float | None:
    """:func:`neighbor_error` among the rows that have a label.

    Args:
        labels: Labels of all rows, if there are any.
        X: Places of the rows that are present, shape (n, d).
        present: Which of all rows are, shape (N,), boolean.

    Returns:
        The error; ``None`` without categories or with fewer than two labeled rows.
    """
    if labels is None or not labels.categories:
        return None
    known = ~torch.isnan(labels.values[present])
    return neighbor_error(X[known], labels.values[present][known]) if int(known.sum()) > 1 else None


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
        "options": asdict(prepared.options),
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
