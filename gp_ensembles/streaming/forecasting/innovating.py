"""Innovation models along sample paths: autocorrelated errors with stochastic volatility and heavy tails."""

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.innovations.bank import InnovationBank, InnovationState
from gp_ensembles.innovations.recursions import LARGEST, SMALLEST, next_scale, predict_error
from gp_ensembles.numerics.draws import generator_device, normal_draws
from gp_ensembles.streaming.forecasting.simulators import Ahead


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
