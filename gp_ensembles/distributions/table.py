"""Printed tables of predictive distributions: means, standard deviations and 90 % intervals of a few rows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gp_ensembles.distributions.interface import Distribution
from gp_ensembles.numerics.display import ends, rows_text

_ENDS = (0.05, 0.95)


def distribution_text(head: str, distribution: Distribution, numbers: Sequence[int] | None = None) -> str:
    """A head, and below it the first and the last rows of a distribution."""
    places = ends(shape_of(distribution)[0])
    if not places:
        return rows_text(head, [], {})
    few = at_rows(distribution, places)
    with torch.no_grad():
        mean, variance = few.moments()
        if mean.ndim > 1:
            names = ("probability of each class",) if "latent_mean" in few._fields else ("mean", "stddev")
            columns = dict(zip(names, ([mean], [variance.sqrt()]), strict=False))
        else:
            columns = {"mean": [mean], "stddev": [variance.sqrt()]}
            if not _is_binary(few):
                columns["90% interval"] = [few.quantile(level) for level in _ENDS]
    return rows_text(head, places if numbers is None else [numbers[place] for place in places], columns)


def shape_of(distribution: Any) -> torch.Size:
    """Shape (N,) of the rows of one of this package's distributions, (N, O) of several outputs."""
    while "base" in distribution._fields:
        distribution = distribution.base
    shape: torch.Size = distribution[1].shape[1:]
    return shape[:1] if "latent_mean" in distribution._fields else shape


def at_rows(distribution: Any, rows: list[int]) -> Any:
    """The distributions of some rows: of all tensors of two axes and more the second is that of the rows."""
    parts = {}
    for name in distribution._fields:
        value = getattr(distribution, name)
        if isinstance(value, tuple) and name == "base":
            parts[name] = at_rows(value, rows)
        elif isinstance(value, Tensor) and value.ndim > 1:
            parts[name] = value[:, rows]
    return distribution._replace(**parts)


def _is_binary(distribution: Any) -> bool:
    """Whether the mean is a probability."""
    try:
        return "latent_mean" in distribution._fields and distribution.class_probabilities.shape[-1] == 2
    except TypeError:  # counts
        return False
