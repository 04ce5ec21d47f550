"""Joint sample paths of an ensemble: an expert for each path, and targets drawn one after the other.

Rows along a path are future inputs, followed by the path's own past targets; its errors are those of the expert's
innovation model.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.innovations.bank import InnovationBank, InnovationState
from gp_ensembles.innovations.recursions import LARGEST, SMALLEST, next_scale, predict_error
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.numerics.draws import generator_device, normal_draws, permutation
from gp_ensembles.streaming.forecasting.ensemble_simulators import make_simulators
from gp_ensembles.streaming.forecasting.simulators import Ahead, PathRows, Simulator


class PathInnovations:
    """Errors of S paths, each from an innovation model of the path's expert, or from the expert's own law.

    ``log_weights`` (M, 1 + K) are those of the experts' own laws and of K models; ``chosen`` are the expert and the
    model of each path, (S,) each.
    """

    def __init__(
        self,
        bank: InnovationBank | None,
        state: InnovationState | None,
        log_weights: Tensor,
        chosen: tuple[Tensor, Tensor],
        *,
        redraws: bool,
        generator: torch.Generator | None,
    ) -> None:
        experts, self._copy = chosen
        self._generator = generator
        ones = torch.ones(experts.shape, dtype=torch.float64, device=experts.device)
        # A row for the expert's own law and one for each model.
        self._place, self._width, self._df, self._shifts = (
            torch.as_tensor(values, dtype=torch.float64, device=experts.device)[:, None] for values in _columns(bank)
        )
        self._place = self._place.long()
        self._redraws = redraws and bank is not None
        shares = log_weights.double().to(experts.device).softmax(1).cumsum(1)
        self._edges = shares[experts].mT[:-1]  # (K, S)
        self._drift, self._coefficient = 0 * ones, 0 * ones
        self._scale, self._slow = ones[None], ones
        self._rate, self._scale_df, self._follows = ones[None, :1] * 0, ones[None, :1], ones[None, :1]
        if bank is not None and state is not None:
            models = bank.constants(ones)
            rates, dfs, follows = 1 - models.keep, models.scale_df, models.drifts.double()
            self._rate, self._scale_df, self._follows = (
                torch.cat([first, more])
                for first, more in zip((self._rate, self._scale_df, self._follows), (rates, dfs, follows), strict=True)
            )
            of_paths = state.scale.double()[:, experts]
            self._scale = torch.cat([self._scale, of_paths])
            self._slow = of_paths[int(rates.argmin())]
            self._drift = predict_error(*state.products, state.last_error, state.age).double()[experts]
            last, age = torch.ones_like(state.last_error), torch.zeros_like(state.age)
            self._coefficient = predict_error(*state.products, last, age).double()[experts]

    def draw(self, ahead: Ahead) -> Tensor:
        """Errors of the paths' next targets, shape (S,)."""
        paths, copy = torch.arange(len(self._copy), device=self._copy.device), self._copy
        df = self._df[copy, 0]
        scale = self._scale[self._place[copy, 0], paths] * self._width[copy, 0] * ahead.variance
        if ahead.degrees_of_freedom is not None:  # the expert's own law
            own = torch.where(copy == 0, ahead.degrees_of_freedom, torch.inf)
            df, scale = torch.minimum(df, own), torch.where(torch.isinf(own), scale, scale * (own - 2) / own)
        errors = self._shifts[copy, 0] * self._drift + scale.sqrt() * self._standard(df)
        moved = errors - self._follows * self._drift
        squares = (moved.square() / ahead.variance).clamp(SMALLEST, LARGEST)
        gain = self._rate * (self._scale_df + 1)
        after = next_scale(1 - self._rate, gain, self._scale, self._scale_df / squares)
        self._scale = after * (self._slow / after) ** self._rate
        self._drift = self._coefficient * errors
        if self._redraws:
            where = generator_device(self._generator)
            uniform = torch.rand(copy.shape, dtype=torch.float64, device=where, generator=self._generator)
            self._copy = (uniform.to(self._edges.device) > self._edges).sum(0)
        return errors

    def _standard(self, df: Tensor) -> Tensor:
        """Standard Student-t draws, normal for infinite degrees of freedom."""
        numbers = df.to(generator_device(self._generator))
        draws = normal_draws(numbers.shape, numbers, self._generator)
        heavy = torch.isfinite(numbers)
        if bool(heavy.any()):
            half = 0.5 * numbers[heavy]
            draws[heavy] *= (half / torch._standard_gamma(half, generator=self._generator)).sqrt()
        return draws.to(df.device)


def _columns(bank: InnovationBank | None) -> list[list[float]]:
    """Recursion of the size, width, degrees of freedom and shift of the expert's own law and of K models."""
    own: list[list[float]] = [[0.0], [1.0], [torch.inf], [0.0]]
    if bank is None:
        return own
    models = bank.row_constants
    columns = (1 + models.places), models.width, np.array(bank.degrees_of_freedom), models.shifts
    return [[*first, *column.reshape(-1).tolist()] for first, column in zip(own, columns, strict=True)]


@torch.no_grad()
def sample_paths(
    online: OnlineEnsemble,
    inputs: Tensor,
    log_weights: Tensor,
    num_paths: int,
    *,
    extra: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Sample paths of the standardized targets of future rows (H, D), shape (S, H), double precision.

    .. math:: p(y_1, \dots, y_H) = \prod_t p(y_t \mid y_1, \dots, y_{t-1})

    ``log_weights`` (M K,) are those of the experts with their innovation models; ``extra`` (H,) is the noise variance
    of each row beyond that of all rows, as where inputs are not known.
    """
    state, ensemble = online.state, online.ensemble
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
