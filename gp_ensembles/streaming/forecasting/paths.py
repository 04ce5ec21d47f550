"""Joint sample paths of an ensemble: an expert for each path, and targets drawn one after the other."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.numerics.draws import generator_device, permutation
from gp_ensembles.streaming.forecasting.ensemble_simulators import make_simulators
from gp_ensembles.streaming.forecasting.innovating import PathInnovations
from gp_ensembles.streaming.forecasting.rows import PathRows
from gp_ensembles.streaming.forecasting.simulators import Ahead, Simulator


class FutureRows(NamedTuple):
    """Future rows as an ensemble takes them.

    Attributes:
        inputs: Shape (H, D).
        extra: Noise variance of each beyond that of all rows, as where inputs are not known, shape (H,); ``None`` for
            none.
    """

    inputs: Tensor
    extra: Tensor | None = None


@torch.no_grad()
def sample_paths(
    online: OnlineEnsemble,
    future: FutureRows,
    log_weights: Tensor,
    num_paths: int,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Sample paths of the standardized targets of future rows, shape (S, H), double precision.

    .. math:: p(y_1, \dots, y_H) = \prod_t p(y_t \mid y_1, \dots, y_{t-1})

    ``log_weights`` (M K,) are those of the experts with their innovation models.
    """
    state, ensemble, (inputs, extra) = online.state, online.ensemble, future
    copies = ensemble.layers.num_copies
    chosen = _chosen(log_weights.double().cpu(), num_paths, generator).to(inputs.device)
    experts, copy = chosen // copies, chosen % copies
    rows = PathRows(ensemble.memory, state.history, inputs, num_paths)
    simulators = make_simulators(ensemble, state, inputs, experts)
    layers, of_experts = ensemble.layers, log_weights.unflatten(0, (-1, copies))
    redraws = not isinstance(layers.rule, BayesianModelAveraging)
    innovations = PathInnovations(
        layers.bank, state.innovations, of_experts, (experts, copy), redraws=redraws, generator=generator
    )
    paths = inputs.new_empty(inputs.shape[0], num_paths, dtype=torch.float64)
    for step in range(inputs.shape[0]):
        ahead = known = _together(simulators, step, rows)
        if extra is not None:
            ahead = known._replace(variance=known.variance + extra[step])
        errors = innovations.draw(ahead)
        y = rows.within_reach(ahead.mean + errors)
        paths[step] = y
        rows.learn(step, y)
        if extra is not None:  # a target with more noise teaches less
            errors = errors * (known.variance / ahead.variance)
        for one in simulators:
            one.learn(step, y[one.paths], errors[one.paths])
    order = permutation(num_paths, generator).to(paths.device)
    return paths.mT[order]


def _chosen(log_weights: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
    """Places of predictions by systematic sampling: each gets its weight times ``num`` paths, rounded up or down."""
    offset = torch.rand((), dtype=torch.float64, device=generator_device(generator), generator=generator)
    edges = log_weights.softmax(0).cumsum(0)
    points = (torch.arange(num, dtype=torch.float64, device="cpu") + float(offset)) / num
    return torch.searchsorted(edges / edges[-1], points).clamp_max(len(edges) - 1)


def _together(simulators: Sequence[Simulator], step: int, rows: PathRows) -> Ahead:
    """Predictions of all paths."""
    mean, variance = rows.new_column(), rows.new_column()
    df: Tensor | None = None
    for one in simulators:
        part = one.predict(step, rows.at(step, one.paths) if one.sees_targets else None)
        mean[one.paths], variance[one.paths] = part.mean, part.variance
        if part.degrees_of_freedom is not None:
            df = torch.full_like(mean, torch.inf) if df is None else df
            df[one.paths] = part.degrees_of_freedom
    return Ahead(mean, variance, df)
