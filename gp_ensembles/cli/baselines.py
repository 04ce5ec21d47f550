"""Simple baselines scored on the same rows: of numbers, and of classes and counts."""

import torch
from torch import Tensor

from gp_ensembles.cli.predictions import PredictedRows, rows_of_classes, rows_of_mixture, rows_of_numbers, rows_of_rates
from gp_ensembles.distributions import StudentTMixture
from gp_ensembles.distributions.latent_mixture import LatentMixture
from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.ensembles.targets import Target
from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.empirical_bayes import fit_empirical_bayes
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.features.linear import LinearFeatures
from gp_ensembles.innovations import InnovationModel
from gp_ensembles.innovations.bank import InnovationBank, InnovationState
from gp_ensembles.meta_learners.averaging import BayesianModelAveraging
from gp_ensembles.numerics.lag_selection import carried_forward
from gp_ensembles.streaming.columns import Standardizer

NAMES = ("previous value", "warm-up mean", "recursive linear regression")
DISCRETE_NAMES = ("previous value", "warm-up frequencies", "recursive linear regression")
# Bands with heavy tails and a scale that follows recent errors.
_BAND = InnovationBank([InnovationModel(degrees_of_freedom=4, rate=0.05, autoregressive=False)])


class Baselines:
    """Three simple online predictors of numbers, in standardized units, float64, on the host.

    Of warm-up rows X (N, D) and y (N,), NaN where missing.
    """

    names = NAMES

    def __init__(self, X: Tensor, y: Tensor) -> None:
        seen = y[~torch.isnan(y)]
        self._last, self._center = seen[-1], seen.mean()
        self._spread, self._step = seen.var(correction=0), seen.diff().square().mean()
        self._band: InnovationState = _BAND.init(len(NAMES), y)
        self.linear: OnlineEnsemble = _linear(GaussianExpert(LinearFeatures.from_data(X)), X, y)

    @torch.no_grad()
    def observe(self, X: Tensor, y: Tensor, targets: Tensor, scales: Standardizer) -> dict[str, PredictedRows]:
        """Predict each target of rows ``X`` (B, D), ``y`` (B,), then learn it; ``targets`` are y in their units."""
        linear = self.linear.observe(X, y)
        previous = carried_forward(torch.cat([self._last.unsqueeze(0), y]))
        self._last = previous[-1]
        mean = torch.stack([previous[:-1], self._center.expand(y.shape), linear.mean])
        variance = torch.stack([self._step.expand(y.shape), self._spread.expand(y.shape), linear.variance])
        self._band, found = _BAND.update_block(self._band, mean, variance, y, missing=torch.isnan(y))
        certain = y.new_zeros(1)
        parts = zip(NAMES, found.mean, found.variance, found.degrees_of_freedom, strict=True)
        shift, scale = scales.y_mean.cpu(), scales.y_scale.cpu()
        return {
            name: rows_of_numbers(StudentTMixture(certain, *moments).rescale(shift, scale), targets, float(scale))
            for name, *moments in parts
        }


def _linear(expert: Expert, X: Tensor, y: Tensor) -> OnlineEnsemble:
    """Recursive linear regression that has learned the warm-up rows."""
    fit_empirical_bayes(expert, X, y)
    linear = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
    linear.observe(X, y)
    return linear


class DiscreteBaselines:
    """As :class:`Baselines`, of classes, levels or counts."""

    names = DISCRETE_NAMES

    def __init__(self, X: Tensor, y: Tensor, target: Target) -> None:
        seen = y[~torch.isnan(y)]
        self.num_classes: int | None = target.num_labels
        self.is_ordered: bool = target.is_ordered
        self._last = seen[-1]
        if self.num_classes is None:
            self._frequencies, self._transitions = seen.mean(), seen.new_empty(0)
        else:
            labels = seen.long()
            counts = torch.bincount(labels, minlength=self.num_classes).to(y) + 1
            pairs = torch.bincount(labels[:-1] * self.num_classes + labels[1:], minlength=self.num_classes**2)
            table = pairs.reshape(self.num_classes, self.num_classes).to(y) + counts / counts.sum()
            self._frequencies, self._transitions = counts / counts.sum(), table / table.sum(-1, keepdim=True)
        self.linear: OnlineEnsemble = _linear(target.expert(LinearFeatures.from_data(X), y), X, y)

    def observe(self, X: Tensor, y: Tensor, targets: Tensor, scales: Standardizer) -> dict[str, PredictedRows]:
        """As :meth:`Baselines.observe`; discrete targets have no units."""
        linear = self.linear.observe(X, y).mixture
        assert isinstance(linear, LatentMixture)
        previous = carried_forward(torch.cat([self._last.unsqueeze(0), y]))
        self._last = previous[-1]
        if self.num_classes is None:
            rates = previous[:-1] + 0.5, self._frequencies.expand(y.shape)
            simple = [rows_of_rates(rate, y) for rate in rates]
        else:
            tables = self._transitions[previous[:-1].long()], self._frequencies.expand(y.shape[0], -1)
            simple = [self._rows(table, y) for table in tables]
        return dict(zip(DISCRETE_NAMES, [*simple, rows_of_mixture(linear, y)], strict=True))

    def _rows(self, probabilities: Tensor, y: Tensor) -> PredictedRows:
        seen = ~torch.isnan(y)
        label = torch.where(seen, y, 0.0).long().unsqueeze(-1)
        log_prob = torch.where(seen, probabilities.gather(-1, label).squeeze(-1).log(), torch.nan)
        return rows_of_classes(probabilities, log_prob, y, is_ordered=self.is_ordered)
