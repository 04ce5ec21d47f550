"""Record of an exact Gaussian process of the last rows as an expert."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from gp_ensembles.ensembles.bases import scaled_kernel
from gp_ensembles.ensembles.build import NamedExpert
from gp_ensembles.ensembles.expert_records import ExpertRecord, WarmUp, warn_of_columns
from gp_ensembles.ensembles.spec_checks import (
    check_count,
    check_flag,
    check_name,
    check_smoothness,
    check_starts,
)
from gp_ensembles.experts.empirical_bayes import LBFGS, Adam, fit_empirical_bayes
from gp_ensembles.experts.window import Refit, WindowExpert
from gp_ensembles.features.compose import SelectColumns

# Compared with a fit to all of a thousand rows to 1e-7, on sixteen tables: a sixth of the time, log scores between 0.03
# nats per row below and 0.04 above, and less than 0.01 below if their scale follows their errors.
_FEW, _LAST_STEPS = 500, 8
_COARSE_TOLERANCE, _TOLERANCE = 1e-4, 1e-5


@final
@dataclass(frozen=True)
class WindowGP(ExpertRecord):
    """An exact Gaussian process of the last rows, with an ARD Matern or RBF kernel: best where rows are few or smooth.

    Its hyperparameters are fitted to some of the warm-up rows and then, for a few more steps of the optimizer, to the
    last ``num_rows`` of them, at a cost of O(W³) per step; afterwards a row costs O(W²). They may be refitted later on.
    With more columns, including past targets, than rows it is omitted, with a warning.

    Attributes:
        num_rows: Least number of rows W in the window, once there have been so many.
        nu: Smoothness 0.5, 1.5 or 2.5 of a Matern kernel; infinity for the RBF kernel.
        starts: Starting length scales, as shares of each column's range; an expert for each.
        lags: Whether inputs include the past targets of the ensemble, if it has any.
        refit_every: Rows between refits of the hyperparameters to the last rows; the first comes after as many rows as
            the warm-up has, if these are fewer; see :class:`~gp_ensembles.experts.window.Refit`. ``None`` for none.
        name: Name of the experts.

    Raises:
        TypeError: If a field is not a number.
        ValueError: If a number is out of range.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> from gp_ensembles.ensembles.windows import WindowGP
        >>> X = torch.linspace(-1, 1, 60, dtype=torch.float64).unsqueeze(-1)
        >>> y = (5 * X).sin().squeeze(-1)
        >>> spec = replace(oebe, bases=(LinearBasis(),), extra_experts=(WindowGP(),), rank_on_warm_up=True)
        >>> online = spec.fit(X, y)
        >>> online.names[int(online.log_weights.argmax())]
        'window/0'
    """

    num_rows: int = 1000
    nu: float = 1.5
    starts: tuple[float, ...] = (0.5,)
    lags: bool = False
    refit_every: int | None = None
    name: str = "window"

    def __post_init__(self) -> None:
        check_count(self, "num_rows", self.num_rows)
        check_smoothness(self, self.nu)
        check_starts(self, self.starts)
        check_flag(self, "lags", self.lags)
        if self.refit_every is not None:
            check_count(self, "refit_every", self.refit_every)
        check_name(self, self.name)

    def build(self, warm_up: WarmUp) -> list[NamedExpert]:
        """See :meth:`ExpertRecord.build`; one expert for each start, whatever ``fit.num_samples``."""
        X, y, fit = warm_up.inputs if self.lags else warm_up.X, warm_up.y, warm_up.fit
        if X.shape[1] > self.num_rows:
            warn_of_columns(self.name, X.shape[1], self.num_rows)
            return []
        kernel = scaled_kernel(X, self.nu, self.starts)
        expert = WindowExpert(kernel, X.shape[1], self.num_rows)
        seen = (~torch.isnan(y)).nonzero().flatten()[-self.num_rows :]
        if fit.method is not None:
            for rows, method in _stages(seen, fit.method):
                fit_empirical_bayes(
                    expert, X[rows], y[rows], method, start_precision=fit.start_precision, progress=warm_up.progress
                )
        num_columns, features = warm_up.inputs.shape[1], expert.features
        if num_columns > X.shape[1]:
            features = SelectColumns(features, range(X.shape[1]), num_columns)
        every, n = self.refit_every, y.shape[0]
        refit = None if every is None else Refit(every, first=n + min(n, every))
        return [(self.name, WindowExpert(kernel, features, self.num_rows, expert.likelihood, refit=refit))]


def _stages(rows: Tensor, method: LBFGS | Adam) -> list[tuple[Tensor, LBFGS | Adam]]:
    """Rows and settings of the fits: most steps on few of the last rows, the last steps on all."""
    if isinstance(method, Adam):
        return [(rows, method)]
    fine = method._replace(loss_tolerance=max(method.loss_tolerance, _TOLERANCE))
    if len(rows) <= _FEW:
        return [(rows, fine)]
    later = rows[len(rows) // 4 :]
    few = torch.linspace(0, len(later) - 1, min(_FEW, len(later)), dtype=torch.float64, device=rows.device)
    coarse = method._replace(loss_tolerance=max(method.loss_tolerance, _COARSE_TOLERANCE))
    return [
        (later[few.round().long()], coarse),
        (rows, fine._replace(max_iterations=min(method.max_iterations, _LAST_STEPS))),
    ]
