"""Record of experts whose lags and hyperparameters are refitted as the stream goes on."""

import copy
import math
from dataclasses import dataclass
from typing import final

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from gp_ensembles.ensembles.bases import scaled_kernel
from gp_ensembles.ensembles.build import NamedExpert
from gp_ensembles.ensembles.expert_records import ExpertRecord, WarmUp
from gp_ensembles.ensembles.spec_checks import check_count, check_flag, check_name
from gp_ensembles.experts.empirical_bayes import LBFGS, fit_empirical_bayes
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.experts.parameters import get_vectors
from gp_ensembles.experts.refitted import InitialFit, RefittedExpert, lagged_columns, lags_of
from gp_ensembles.experts.window import Refit
from gp_ensembles.features.compose import Concatenate
from gp_ensembles.features.fourier import RandomFourierFeatures
from gp_ensembles.features.linear import LinearFeatures
from gp_ensembles.numerics.lag_selection import carried_forward
from gp_ensembles.spectral import OrthogonalDraws

# Two experts of 200 random features predict better than four of 100 from two starting length scales, and vary less
# between draws if frequencies are orthogonal (``benchmarks/README.md``).
_START, _SHORT = 1.0, 0.2  # starting length scales as shares of each column's range
_SPEEDS = (0.0, 1e-2)  # static weights, and the fastest walk of ``auto``
_LINEAR_START = 0.01  # prior variance of the linear part, which must not explain everything
_MOST_LAGS = 7
_TOLERANCE = 1e-5


@final
@dataclass(frozen=True)
class Refitted(ExpertRecord):
    """Two experts, static and on a random walk, whose lags and hyperparameters are refitted at regular intervals.

    Their features are linear and random Fourier ones of the inputs and of lags that they select themselves. After a
    short warm-up they are soon as good as after a long one, and they follow changes of length scales and of lags. See
    :class:`~gp_ensembles.experts.refitted.RefittedExpert`.

    Attributes:
        num_features: Random features, twice the number of frequencies.
        lags: Whether past targets are among their inputs.
        every: Rows between refits; the first comes after as many rows as the warm-up has, if these are fewer.
        num_rows: Most rows of a fit; twice as many are stored and learned at a refit.
        name: Name of the experts.

    Raises:
        TypeError: If a field is not a number.
        ValueError: If a number is out of range.

    Example:
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import default_rule, oebe
        >>> X = torch.linspace(-1, 1, 300, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(torch.arange(300, dtype=torch.float64).square() / 300)
        >>> spec = replace(oebe, bases=(LinearBasis(),), rule=default_rule())
        >>> spec = replace(spec, extra_experts=(Refitted(num_features=20),))
        >>> online = spec.fit(X[:60], y[:60], generator=torch.Generator().manual_seed(0))
        >>> log_prob = online.observe(X[60:], y[60:]).experts.log_prob.mean(-1)
        >>> online.names[int(log_prob.argmax())]
        'refitted/1'
    """

    num_features: int = 200
    lags: bool = True
    every: int = 1000
    num_rows: int = 1000
    name: str = "refitted"

    def __post_init__(self) -> None:
        check_count(self, "num_features", self.num_features, even=True)
        check_flag(self, "lags", self.lags)
        check_count(self, "every", self.every)
        check_count(self, "num_rows", self.num_rows)
        check_name(self, self.name)

    def build(self, warm_up: WarmUp) -> list[NamedExpert]:
        """See :meth:`ExpertRecord.build`; its two experts are one object."""
        X, y, fit = warm_up.X, warm_up.y, warm_up.fit
        lags = _padded(lags_of(y, _MOST_LAGS)) if self.lags else ()
        past = carried_forward(y).to(y)
        columns = torch.cat([X, lagged_columns(past, torch.tensor(lags, dtype=torch.int64, device=X.device))], dim=-1)
        model, short = self._models(X, past, len(lags), warm_up.generator)
        seen = (~torch.isnan(y)).nonzero().flatten()[-self.num_rows :]
        start = get_vectors(short)[0]
        if fit.method is not None:
            method, precision, progress = fit.method, fit.start_precision, warm_up.progress
            if isinstance(method, LBFGS):
                method = method._replace(loss_tolerance=max(method.loss_tolerance, _TOLERANCE))
            fits = [
                fit_empirical_bayes(one, columns[seen], y[seen], method, start_precision=precision, progress=progress)
                for one in (model, short)
            ]
            if bool(fits[1].log_evidence > fits[0].log_evidence):
                model = short
        with torch.no_grad():
            mean_square = model.features(columns).square().sum(-1).mean()
        initial_fit, n, speeds = InitialFit(lags, mean_square, start), y.shape[0], X.new_tensor(_SPEEDS)
        refit = Refit(self.every, first=n + min(n, self.every), num_rows=self.num_rows)
        return [(self.name, RefittedExpert(model, warm_up.inputs.shape[1], initial_fit, speeds, refit))]

    def _models(
        self, X: Tensor, past: Tensor, num_lags: int, generator: torch.Generator | None
    ) -> tuple[GaussianExpert, GaussianExpert]:
        """Linear and random Fourier features of inputs and lags, at long and at short length scales."""
        scales = torch.cat([X, past.unsqueeze(-1).expand(-1, num_lags)], dim=-1)
        kernel, num_columns = scaled_kernel(scales, math.inf, (_START,)), scales.shape[1]
        smooth = RandomFourierFeatures.from_kernel(
            kernel, num_columns, self.num_features, draws=OrthogonalDraws(), generator=generator
        )
        straight = LinearFeatures(num_columns, X.new_full((1,), _LINEAR_START))
        model = GaussianExpert(Concatenate([straight, smooth]))
        short = copy.deepcopy(model)
        for part in short.modules():
            if isinstance(part, RBFKernel):
                part.lengthscale = part.lengthscale * (_SHORT / _START)
        return model, short


def _padded(lags: tuple[int, ...]) -> tuple[int, ...]:
    """Lags padded with zeros to their largest possible number."""
    return (*lags, *[0] * (_MOST_LAGS - len(lags)))
