r"""Streaming sparse Gaussian processes of two classes (Bui, Nguyen and Turner, 2017), with the logistic likelihood.

As in :mod:`studies.ie_gp.ssgp`, all older rows are :math:`q(a) / p(a)`, a normal likelihood at the old inducing points.
Each new row gets one, too, of precision :math:`\lambda` and shift s in f, whose numbers make the bound stationary
and are found by repetition; the hyperparameters and the inducing points climb the bound with these fixed, by turns
(Adam, Chang, Khan and Solin, 2021).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.numerics.gauss_hermite import gauss_hermite
from studies.ie_gp.ssgp import NUGGET, Kernel, Old, Settings, added, first_kernel, refit, successors

_ROUNDS, _REPEATS = 2, 8  # of sites and climbs with every batch; of sites in each
_NODES = 20


class Sites(NamedTuple):
    """Normal likelihoods of f in the place of N labels; precisions and shifts, shape (N,)."""

    precision: Tensor
    shift: Tensor

    @classmethod
    def of(cls, mean: Tensor, variance: Tensor, y: Tensor) -> "Sites":
        """The sites that are stationary where f has these means and variances (N,), of labels 0 and 1 (N,)."""
        chance = expected(torch.sigmoid, mean, variance)
        curvature = chance - expected(lambda f: f.sigmoid().square(), mean, variance)
        return cls(curvature, y - chance + curvature * mean)


class Absorbed(NamedTuple):
    """The bound of a batch, shape (), what is known after it, and f's means and variances at its rows, shape (N,)."""

    bound: Tensor
    old: Old
    mean: Tensor
    variance: Tensor


def expected(function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    """Expectations of a function of f, normal with these means and variances (N,)."""
    nodes, weights = gauss_hermite(_NODES, mean)
    return function(mean.unsqueeze(-1) + variance.clamp_min(1e-12).sqrt().unsqueeze(-1) * nodes) @ weights


def absorb_labels(kernel: Kernel, knots: Tensor, X: Tensor, y: Tensor, old: Old, sites: Sites) -> Absorbed:
    r"""The bound of a batch of labels with given sites.

    With the names of :func:`studies.ie_gp.ssgp.absorb`, :math:`B = I + W_f \Lambda W_f^\top + T C T^\top` and
    :math:`c = W_f s + T g` make :math:`q(v) = N(B^{-1} c, B^{-1})`, and

    .. math:: F = \sum_n E_q \log p(y_n \mid f_n) - KL(q(v) \,\|\, N(0, I))
        + E_q \Bigl[ g^\top v_a - \tfrac12 v_a^\top C v_a \Bigr] + \log \frac{q(0)}{p(0)}.

    Shapes: ``knots`` (K, D), ``X`` (N, D), ``y`` (N,).
    """
    own = NUGGET * kernel.variance.exp()
    factor = cholesky(added(kernel.covariance(knots, knots), own), "the covariance of the inducing points")
    rows = torch.linalg.solve_triangular(factor, kernel.covariance(knots, X), upper=False)
    past = torch.linalg.solve_triangular(factor, kernel.covariance(knots, old.knots), upper=False)
    past = torch.linalg.solve_triangular(old.factor, past.mT, upper=False).mT
    precision = (rows * sites.precision) @ rows.mT + past @ old.precision @ past.mT
    shift = rows @ sites.shift + past @ old.shift
    root = cholesky(added(precision, precision.new_ones(())), "the posterior precision of the inducing variables")
    white = torch.linalg.solve_triangular(root, shift.unsqueeze(-1), upper=False)
    mean = torch.linalg.solve_triangular(root.mT, white, upper=True).squeeze(-1)
    eye = added(torch.zeros_like(root), root.new_ones(()))
    spread = torch.linalg.solve_triangular(root, torch.cat([rows, past, eye], 1), upper=False)
    of_rows, of_past, of_knots = spread.split([len(X), past.shape[1], len(knots)], 1)
    variance = kernel.variance.exp() - rows.square().sum(0) + of_rows.square().sum(0)
    own_past = added(kernel.covariance(old.knots, old.knots), own)
    prior_past = torch.linalg.solve_triangular(old.factor, own_past, upper=False)
    prior_past = torch.linalg.solve_triangular(old.factor, prior_past.mT, upper=False)
    mean_past = past.mT @ mean
    second = prior_past - past.mT @ past + of_past.mT @ of_past + torch.outer(mean_past, mean_past)
    f = rows.mT @ mean
    divergence = 0.5 * (of_knots.square().sum() + mean.square().sum() - len(knots)) + root.diagonal().log().sum()
    bound = (
        expected(logsigmoid, (2 * y - 1) * f, variance).sum()
        - divergence
        + old.shift @ mean_past
        - 0.5 * (old.precision * second).sum()
        + old.constant
    )
    gained = 0.5 * white.square().sum() - root.diagonal().log().sum()
    return Absorbed(bound, Old(knots, factor, precision, shift, -gained), f, variance)


def settled(kernel: Kernel, knots: Tensor, X: Tensor, y: Tensor, old: Old, sites: Sites) -> tuple[Sites, Absorbed]:
    """Stationary sites at these hyperparameters and inducing points, and what is known with them."""
    with torch.no_grad():
        for _ in range(_REPEATS):
            found = absorb_labels(kernel, knots, X, y, old, sites)
            sites = Sites.of(found.mean, found.variance, y)
        return sites, absorb_labels(kernel, knots, X, y, old, sites)


def refit_labels(
    kernel: Kernel, knots: Tensor, X: Tensor, y: Tensor, old: Old, iterations: int
) -> tuple[Kernel, Absorbed]:
    """Sites and climbs by turns, from a kernel and inducing points.

    Raises:
        NumericalError: If the bound cannot be computed where it starts.
    """
    sites, found = settled(kernel, knots, X, y, old, Sites(torch.full_like(y, 0.25), y - 0.5))
    for _ in range(_ROUNDS):

        def absorbing(own: Kernel, places: Tensor, sites: Sites = sites) -> tuple[Tensor, Old]:
            return absorb_labels(own, places, X, y, old, sites)[:2]

        kernel, after = refit(kernel, knots, absorbing, len(y), iterations)
        knots = after.knots
        sites, found = settled(kernel, knots, X, y, old, sites)
    return kernel, found


class StreamingSparseClassifier:
    """Predicts each label before it learns it, and refits with every batch; made by :meth:`fit`.

    Between two refits rows are absorbed one by one, each with a site of its own, as the regression does.
    """

    def __init__(self, kernel: Kernel, old: Old, settings: Settings, generator: torch.Generator | None) -> None:
        self.kernel, self.old, self.settings = kernel, old, settings
        self._generator = generator
        self._begin()

    @classmethod
    def fit(
        cls, X: Tensor, y: Tensor, settings: Settings, generator: torch.Generator | None = None
    ) -> "StreamingSparseClassifier":
        """Fit hyperparameters and inducing points to the warm-up rows X (N, D) and labels y (N,)."""
        order = torch.randperm(len(X), generator=generator, device="cpu")[: settings.num_inducing]
        start = X[order.to(X.device)]
        iterations = settings.first_iterations // _ROUNDS
        kernel, found = refit_labels(first_kernel(X), start, X, y, Old.nothing(X), iterations)
        return cls(kernel, found.old, settings, generator)

    @torch.no_grad()
    def observe(self, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Chances of 1 and log probabilities of rows X (N, D), each given before its label y (N,) was seen."""
        chances = []
        for row, label in zip(X, y, strict=True):
            chances.append(self._learned(row.unsqueeze(0), label.reshape(1)))
            self._rows.append(row)
            self._labels.append(label)
            if len(self._labels) >= self.settings.batch:
                X_new, y_new = torch.stack(self._rows), torch.stack(self._labels)
                start = successors(self.old.knots, X_new, self._generator)
                args = (X_new, y_new, self.old, self.settings.iterations)
                self.kernel, found = refit_labels(self.kernel, start, *args)
                self.old = found.old
                self._begin()
        chance = torch.cat(chances)
        return chance, torch.where(y > 0.5, chance, 1 - chance).log()

    def _begin(self) -> None:
        """No row since the last refit."""
        self._rows, self._labels = list[Tensor](), list[Tensor]()
        self._precision, self._shift = added(self.old.precision, self.old.shift.new_ones(())), self.old.shift
        self._covariance = torch.cholesky_inverse(cholesky(self._precision, "the posterior precision"))

    def _learned(self, row: Tensor, y: Tensor) -> Tensor:
        """The chance of 1 at a row (1, D), whose label is then absorbed."""
        at = torch.linalg.solve_triangular(self.old.factor, self.kernel.covariance(self.old.knots, row), upper=False)
        spread, rest = self._covariance @ at, self.kernel.variance.exp() - at.square().sum()
        prior_mean, prior = (spread.mT @ self._shift).reshape(1), (at.mT @ spread).reshape(1)
        chance = expected(torch.sigmoid, prior_mean, prior + rest)
        mean, variance = prior_mean, prior
        for _ in range(_REPEATS):
            sites = Sites.of(mean, variance + rest, y)
            variance = prior / (1 + prior * sites.precision)
            mean = variance * (prior_mean / prior + sites.shift)
        self._covariance = self._covariance - spread @ spread.mT * (sites.precision / (1 + prior * sites.precision))
        self._shift = self._shift + at.squeeze(-1) * sites.shift
        return chance
