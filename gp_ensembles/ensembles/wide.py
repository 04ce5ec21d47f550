"""Record of experts with many random Fourier features, their length scales from an exact Gaussian process."""

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from gp_ensembles.ensembles.bases import scaled_kernel
from gp_ensembles.ensembles.build import NamedExpert
from gp_ensembles.ensembles.expert_records import ExpertRecord, WarmUp, warn_of_columns
from gp_ensembles.ensembles.price import largest_size, price_of_features
from gp_ensembles.ensembles.spec_checks import (
    check_count,
    check_flag,
    check_name,
    check_positive,
    check_smoothness,
    check_variances,
)
from gp_ensembles.experts.empirical_bayes import fit_empirical_bayes
from gp_ensembles.experts.gaussian import GaussianExpert, default_likelihood
from gp_ensembles.experts.window import WindowExpert
from gp_ensembles.features.compose import SelectColumns
from gp_ensembles.features.fourier import RandomFourierFeatures
from gp_ensembles.features.rebatch import take_experts

_MOST_ROWS = 500  # of the exact process: O(N^3) per step of the optimizer
_NUM_FEATURES = 1000
_SIZES = (100, 250, 500, 1000, 2000, 4000)  # among which a price chooses
_START = 0.5  # starting length scale as a share of each column's range


@final
@dataclass(frozen=True)
class WideFeatures(ExpertRecord):
    r"""Many random Fourier features of an ARD kernel with the length scales of an exact Gaussian process.

    They learn all rows of the stream at constant cost, O(F²) per noise and row. The evidence of so many features would
    cost O(N F²) per step of the optimizer; that of the exact process costs O(N³) with N at most 500 warm-up rows, and
    its length scales and output scale can be used. **Its noise cannot.** The process is
    :math:`f(x) = \phi(x)^\top \theta + r(x)`, and the part that F features miss, :math:`E\,r(x)^2 = a_F`, is lost:
    after N rows the predictive variance of the expert is

    .. math:: \sigma^2 + \sigma^2 \phi(x)^\top \Big(\sum_n \phi(x_n) \phi(x_n)^\top + \tfrac{\sigma^2}{\sigma_\theta^2}
              I\Big)^{-1} \phi(x) \;\to\; \sigma^2,
              \qquad\text{while}\quad E(y - \hat y)^2 \;\to\; \sigma^2 + a_F

    (variance starvation; Wang, Gehring, Kohli and Jegelka 2018). A log score then loses
    :math:`a_F / 2\sigma^2` nats per row, without bound for small noise. The loss depends on the kernel, the number of
    columns and F, so there are a few fixed noises far apart, in squared units of the standardized target, an expert
    with its own draws for each; the rule weighs them, and innovation models correct their scale.

    Attributes:
        num_features: Features F of each expert, twice the number of frequencies; 1 000 by default.
        price: Instead of their number, the most microseconds per row, in blocks and for all noises together. The fit
            takes the largest of 100, 250, 500, 1 000, 2 000 and 4 000 features that meet it on this machine; see
            :meth:`resolved`.
        nu: Smoothness 0.5, 1.5 or 2.5 of a Matern kernel; infinity for the RBF kernel, whose spectrum has no heavy
            tails that would need more features.
        noises: Noise variances, an expert for each.
        lags: Whether inputs include the past targets of the ensemble, if it has any.
        name: Name of the experts.

    Raises:
        TypeError: If a field is not a number.
        ValueError: If a number is out of range, or both a number of features and a price are given.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> X = torch.linspace(-1, 1, 60, dtype=torch.float64).unsqueeze(-1)
        >>> y, wide = (5 * X).sin().squeeze(-1), WideFeatures(num_features=100)
        >>> spec = replace(oebe, bases=(LinearBasis(),), extra_experts=(wide,), rank_on_warm_up=True)
        >>> online = spec.fit(X, y)
        >>> online.names[-len(wide.noises) :]
        ('wide/0', 'wide/1')
    """

    num_features: int | None = None
    price: float | None = None
    nu: float = math.inf
    noises: tuple[float, ...] = (0.003, 0.1)
    lags: bool = False
    name: str = "wide"

    def __post_init__(self) -> None:
        if self.num_features is not None:
            check_count(self, "num_features", self.num_features, even=True)
        if self.price is not None:
            check_positive(self, "price", self.price)
        if self.num_features is not None and self.price is not None:
            raise ValueError(
                f"WideFeatures has either num_features or a price that they follow from, got {self.num_features} and "
                f"{self.price:g}"
            )
        check_smoothness(self, self.nu)
        check_variances(self, "noises", self.noises)
        check_flag(self, "lags", self.lags)
        check_name(self, self.name)

    def resolved(self, X: Tensor) -> "WideFeatures":
        """The same with the price replaced by a number of features, measured on this machine.

        Args:
            X: Warm-up inputs, shape (N, D), for their number of columns, dtype and device.

        Raises:
            ValueError: If the price cannot be met.
        """
        if self.price is None:
            return self
        size = largest_size(self.price, _SIZES, lambda size: price_of_features(size, len(self.noises), X), "features")
        return replace(self, num_features=size, price=None)

    def build(self, warm_up: WarmUp) -> list[NamedExpert]:
        """See :meth:`ExpertRecord.build`; one expert for each noise, whatever ``fit.num_samples``."""
        X, y = warm_up.inputs if self.lags else warm_up.X, warm_up.y
        if X.shape[1] > _MOST_ROWS:
            warn_of_columns(self.name, X.shape[1], _MOST_ROWS)
            return []
        num_features = self.resolved(X).num_features or _NUM_FEATURES
        kernel = scaled_kernel(X, self.nu, (_START,))
        exact = WindowExpert(kernel, X.shape[1], _MOST_ROWS)
        rows = fitting_rows(y)
        if warm_up.fit.method is not None:
            precision, progress = warm_up.fit.start_precision, warm_up.progress
            fit_empirical_bayes(
                exact, X[rows], y[rows], warm_up.fit.method, start_precision=precision, progress=progress
            )
        copies = torch.zeros(len(self.noises), dtype=torch.long, device="cpu")
        repeated = take_experts(kernel, kernel.batch_shape, copies)
        features = RandomFourierFeatures.from_kernel(repeated, X.shape[1], num_features, generator=warm_up.generator)
        likelihood = default_likelihood(features)
        likelihood.noise = X.new_tensor(self.noises).unsqueeze(-1)
        num_columns = warm_up.inputs.shape[1]
        if num_columns == X.shape[1]:
            return [(self.name, GaussianExpert(features, likelihood))]
        seeing = SelectColumns(features, range(X.shape[1]), num_columns)
        return [(self.name, GaussianExpert(seeing, likelihood))]


def fitting_rows(y: Tensor) -> Tensor:
    """Indices of the last 500 observed targets of y (N,), all where there are fewer."""
    return (~torch.isnan(y)).nonzero().flatten()[-_MOST_ROWS:]
