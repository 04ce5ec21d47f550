"""The exact Gaussian process of the last rows as a further expert, as a frozen record."""

from dataclasses import dataclass
from typing import final

import torch

from gp_ensembles.ensembles.bases import scaled_kernel
from gp_ensembles.ensembles.build import NamedExpert
from gp_ensembles.ensembles.further import FurtherExpert, WarmUp
from gp_ensembles.ensembles.spec_checks import (
    check_count,
    check_flag,
    check_name,
    check_smoothness,
    check_starts,
)
from gp_ensembles.experts.empirical_bayes import fit_empirical_bayes
from gp_ensembles.experts.window import WindowExpert
from gp_ensembles.features.compose import SelectColumns


@final
@dataclass(frozen=True)
class WindowGP(FurtherExpert):
    """An exact Gaussian process of the last rows, with an ARD Matern or RBF kernel: best where rows are few or smooth.

    Its hyperparameters are fitted to the last ``num_rows`` of the warm-up rows, which costs O(W³) for each step of the
    optimizer; afterwards a row costs O(W²).

    Attributes:
        num_rows: Rows W that the window knows at least, once there have been so many.
        nu: Smoothness 0.5, 1.5 or 2.5 of a Matern kernel; infinity for the RBF kernel.
        starts: Starting length scales, as shares of each column's range; an expert for each.
        lags: Whether it sees the past targets that the ensemble remembers as inputs, too; without such the same.
        name: What the experts are called.

    Raises:
        TypeError: If a number is none.
        ValueError: If a number is out of range.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> from gp_ensembles.ensembles.windows import WindowGP
        >>> X = torch.linspace(-1, 1, 60, dtype=torch.float64).unsqueeze(-1)
        >>> y = (5 * X).sin().squeeze(-1)
        >>> online = replace(oebe, bases=(LinearBasis(),), further=(WindowGP(),), rank_on_warm_up=True).fit(X, y)
        >>> online.names[int(online.log_weights.argmax())]
        'window/0'
    """

    num_rows: int = 1000
    nu: float = 1.5
    starts: tuple[float, ...] = (0.5,)
    lags: bool = False
    name: str = "window"

    def __post_init__(self) -> None:
        check_count(self, "num_rows", self.num_rows)
        check_smoothness(self, self.nu)
        check_starts(self, self.starts)
        check_flag(self, "lags", self.lags)
        check_name(self, self.name)

    def build(self, warm_up: WarmUp) -> list[NamedExpert]:
        """See :meth:`FurtherExpert.build`; one expert for each start, whatever ``fit.num_samples``."""
        X, y, fit = warm_up.inputs if self.lags else warm_up.X, warm_up.y, warm_up.fit
        kernel = scaled_kernel(X, self.nu, self.starts)
        expert = WindowExpert(kernel, X.shape[1], self.num_rows)
        seen = (~torch.isnan(y)).nonzero().flatten()[-self.num_rows :]
        if fit.method is not None:
            precision, progress = fit.start_precision, warm_up.progress
            fit_empirical_bayes(expert, X[seen], y[seen], fit.method, start_precision=precision, progress=progress)
        num_columns = warm_up.inputs.shape[1]
        if num_columns == X.shape[1]:
            return [(self.name, expert)]
        features = SelectColumns(expert.features, range(X.shape[1]), num_columns)
        return [(self.name, WindowExpert(kernel, num_columns, self.num_rows, expert.likelihood, features))]
