"""Innovation models along sample paths: errors that follow one another, whose size follows them, with heavy tails."""

import torch
from torch import Tensor

from gp_ensembles.innovations import InnovationBank, InnovationState, autoregression, volatility
from gp_ensembles.streaming.forecasting.simulator import Ahead


class PathInnovations:
    r"""Errors of S paths, each by the innovation model of the path, or by the expert's own law.

    Coefficients of the autoregression stay what they are at the origin. Sizes follow the errors that are drawn, and go
    back to the slowest model's, which knows the last fifty errors: one of rate :math:`\lambda` by the factor
    :math:`(g^{slow} / g_t)^\lambda` a step, for as it forgets errors at that rate it says nothing of errors far ahead.

    Args:
        bank: The innovation models; ``None`` for none.
        state: Their state.
        experts: Which of the M experts each path has, shape (S,).
        copies: Which of its predictions, 0 for its own, shape (S,).
        generator: Source of randomness, on the CPU.
    """

    def __init__(
        self,
        bank: InnovationBank | None,
        state: InnovationState | None,
        experts: Tensor,
        copies: Tensor,
        generator: torch.Generator | None,
    ) -> None:
        self._generator = generator
        ones = torch.ones(experts.shape, dtype=torch.float64, device=experts.device)
        self._scale, self._width, self._rate, self._scale_df = ones, ones, 0 * ones, ones
        self._df, self._shifts = ones * torch.inf, 0 * ones
        self._drift, self._coefficient, self._slow = 0 * ones, 0 * ones, ones
        if bank is not None and state is not None:
            self._begin(bank, state, experts, copies)

    def draw(self, ahead: Ahead) -> Tensor:
        """Errors of the paths' next targets, shape (S,)."""
        scale, df = self._scale * self._width * ahead.variance, self._df
        if ahead.degrees_of_freedom is not None:  # an expert's own law; of others normal ones are widened by a model
            df = torch.where(torch.isinf(self._df) & (self._rate == 0), ahead.degrees_of_freedom, df)
            scale = torch.where(df != self._df, scale * (df - 2) / df, scale)
        moved = scale.sqrt() * self._standard(df)
        errors = self._drift + moved
        squares = (moved.square() / ahead.variance).clamp(volatility.SMALLEST, volatility.LARGEST)
        after, _ = volatility.update_block(self._scale, squares.unsqueeze(-1), self._rate, self._scale_df, None)
        self._scale = after * (self._slow / after) ** self._rate
        self._drift = self._coefficient * errors
        return errors

    def _standard(self, df: Tensor) -> Tensor:
        """Standard Student-t draws, normal for infinite degrees of freedom."""
        numbers = df.cpu()
        draws = torch.empty_like(numbers).normal_(generator=self._generator)
        heavy = torch.isfinite(numbers)
        if bool(heavy.any()):
            half = 0.5 * numbers[heavy]
            draws[heavy] *= (half / torch._standard_gamma(half, generator=self._generator)).sqrt()
        return draws.to(df.device)

    def _begin(self, bank: InnovationBank, state: InnovationState, experts: Tensor, copies: Tensor) -> None:
        models, own = bank.row_models, copies == 0
        model = (copies - 1).clamp_min(0)

        def of_model(column: object, plain: float) -> Tensor:
            values = torch.as_tensor(column, dtype=torch.float64).reshape(-1).to(copies.device)[model]
            return torch.where(own, plain, values)

        place = torch.as_tensor(models.places, device=copies.device)[model]
        self._width, self._df = of_model(models.width, 1.0), of_model(models.df, torch.inf)
        self._rate = of_model(models.rate[models.places], 0.0)
        self._scale_df = of_model(models.scale_df[models.places], 1.0)
        self._scale = torch.where(own, 1.0, state.scale.double()[place, experts])
        slowest = state.scale[int(models.rate.argmin())].double()
        self._slow = torch.where(own, 1.0, slowest[experts])
        shifts = of_model(models.shifts, 0.0)
        start = autoregression.AutoregressionState(state.products, state.last_error, state.age)
        self._drift = shifts * autoregression.predict(start).double()[experts]
        soon = start._replace(age=torch.zeros_like(state.age), last_error=torch.ones_like(state.last_error))
        self._coefficient = shifts * autoregression.predict(soon).double()[experts]
