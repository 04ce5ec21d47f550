"""What a model of classes or counts must beat: the last target, the warm-up frequencies, linear regression."""

import torch
from torch import Tensor, nn

from gp_ensembles.cli.baselines import fill_forward
from gp_ensembles.cli.discrete import DiscreteRows, rows_of_classes, rows_of_mixture, rows_of_rates
from gp_ensembles.ensembles.ensemble import Ensemble
from gp_ensembles.ensembles.latent_mixture import LatentMixture
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.ensembles.targets import Target
from gp_ensembles.experts.empirical_bayes import fit_empirical_bayes
from gp_ensembles.features.linear import LinearFeatures
from gp_ensembles.meta_learners.averaging import BayesianModelAveraging

DISCRETE_NAMES = ("previous value", "warm-up frequencies", "recursive linear regression")


class DiscreteBaselines(nn.Module):
    """Three simple predictors of classes, levels or counts, learning as the stream goes; float64, on the host.

    *Previous value*: classes follow the transition frequencies of successive warm-up targets; a count is Poisson with
    the last count plus a half as its rate. *Warm-up frequencies*: of the classes, with one added to each; for counts a
    Poisson with the warm-up mean. *Recursive linear regression*: logistic, ordinal, softmax or Poisson regression with
    a Gaussian prior, conditioned on the warm-up rows, never forgetting.

    Args:
        X: Warm-up inputs, shape (N, D), float64.
        y: Warm-up targets, shape (N,), float64; NaN where missing.
        target: What kind of target y is.
        structure_only: Skip the fit; the numbers come from a ``state_dict``.
    """

    names = DISCRETE_NAMES
    last: Tensor
    frequencies: Tensor
    transitions: Tensor

    def __init__(self, X: Tensor, y: Tensor, target: Target, *, structure_only: bool = False) -> None:
        super().__init__()
        seen = y[~torch.isnan(y)]
        self.num_classes = target.num_labels
        self.is_ordered = target.is_ordered
        self.register_buffer("last", seen[-1].clone())
        if self.num_classes is None:
            self.register_buffer("frequencies", seen.mean())
            self.register_buffer("transitions", seen.new_empty(0))
        else:
            labels = seen.long()
            counts = torch.bincount(labels, minlength=self.num_classes).to(y) + 1
            pairs = torch.bincount(labels[:-1] * self.num_classes + labels[1:], minlength=self.num_classes**2)
            table = pairs.reshape(self.num_classes, self.num_classes).to(y) + counts / counts.sum()
            self.register_buffer("frequencies", counts / counts.sum())
            self.register_buffer("transitions", table / table.sum(-1, keepdim=True))
        expert = target.expert(LinearFeatures.from_data(X))
        if not structure_only:
            fit_empirical_bayes(expert, X, y)
        self.linear = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
        self.linear.observe(X, y)

    def observe(self, X: Tensor, y: Tensor) -> dict[str, DiscreteRows]:
        """Predict each target (B,), then learn it; the predictions of each baseline, by name."""
        linear = self.linear.observe(X, y).mixture
        assert isinstance(linear, LatentMixture)
        previous = fill_forward(torch.cat([self.last.unsqueeze(0), y]))
        self.last.copy_(previous[-1])
        if self.num_classes is None:
            rates = previous[:-1] + 0.5, self.frequencies.expand(y.shape)
            simple = [rows_of_rates(rate, y) for rate in rates]
        else:
            tables = self.transitions[previous[:-1].long()], self.frequencies.expand(y.shape[0], -1)
            simple = [self._rows(table, y) for table in tables]
        return dict(zip(DISCRETE_NAMES, [*simple, rows_of_mixture(linear, y)], strict=True))

    def _rows(self, probabilities: Tensor, y: Tensor) -> DiscreteRows:
        seen = ~torch.isnan(y)
        label = torch.where(seen, y, 0.0).long().unsqueeze(-1)
        log_prob = torch.where(seen, probabilities.gather(-1, label).squeeze(-1).log(), torch.nan)
        return rows_of_classes(probabilities, log_prob, y, is_ordered=self.is_ordered)
