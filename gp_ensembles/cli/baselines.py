"""What a model must beat on the same rows: the previous value, the warm-up mean, recursive linear regression."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gp_ensembles.ensembles.ensemble import Ensemble
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.experts.empirical_bayes import fit_empirical_bayes
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.features.linear import LinearFeatures
from gp_ensembles.meta_learners.averaging import BayesianModelAveraging

NAMES = ("previous value", "warm-up mean", "recursive linear regression")


class NormalPrediction(NamedTuple):
    """A normal prediction of each row, made before its target.

    Attributes:
        mean: Means, shape (B,).
        variance: Variances, shape (B,).
    """

    mean: Tensor
    variance: Tensor


class Baselines(nn.Module):
    """Three simple predictors, learning as the stream goes; all in standardized units, float64, on the host.

    *Previous value*: the last target seen, with the mean squared difference of successive warm-up targets as
    its variance; missing targets are skipped, both there and in the stream. *Warm-up mean*: mean and
    population variance of the warm-up targets. *Recursive linear regression*: Bayesian, prior and noise by
    empirical Bayes on the warm-up rows, conditioned on them, never forgetting.

    Args:
        X: Warm-up inputs, shape (N, D), float64.
        y: Warm-up targets, shape (N,), float64; NaN where missing.
        structure_only: Skip the fit; the numbers come from a ``state_dict``.

    Example:
        >>> import torch
        >>> y = torch.tensor([0.0, 1.0, torch.nan, 0.0, 1.0], dtype=torch.float64)
        >>> baselines = Baselines(torch.arange(5.0, dtype=torch.float64).unsqueeze(-1), y)
        >>> predictions = baselines.observe(y.new_zeros(2, 1), y.new_tensor([5.0, 6.0]))
        >>> predictions["previous value"].mean, predictions["previous value"].variance
        (tensor([1., 5.], dtype=torch.float64), tensor([1., 1.], dtype=torch.float64))
    """

    names = NAMES
    last: Tensor
    center: Tensor
    spread: Tensor
    step: Tensor

    def __init__(self, X: Tensor, y: Tensor, *, structure_only: bool = False) -> None:
        super().__init__()
        seen = y[~torch.isnan(y)]
        self.register_buffer("last", seen[-1].clone())
        self.register_buffer("center", seen.mean())
        self.register_buffer("spread", seen.var(correction=0))
        self.register_buffer("step", seen.diff().square().mean())
        expert = GaussianExpert(LinearFeatures.from_data(X))
        if not structure_only:
            fit_empirical_bayes(expert, X, y)
        self.linear = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
        self.linear.observe(X, y)

    def observe(self, X: Tensor, y: Tensor) -> dict[str, NormalPrediction]:
        """Predict each target, then learn it.

        Args:
            X: Inputs in the order of time, shape (B, D).
            y: Targets, shape (B,); NaN where missing.

        Returns:
            The predictions of each baseline, by name.
        """
        linear = self.linear.observe(X, y)
        previous = fill_forward(torch.cat([self.last.unsqueeze(0), y]))
        self.last.copy_(previous[-1])
        return {
            NAMES[0]: NormalPrediction(previous[:-1], self.step.expand(y.shape)),
            NAMES[1]: NormalPrediction(self.center.expand(y.shape), self.spread.expand(y.shape)),
            NAMES[2]: NormalPrediction(linear.mean, linear.variance),
        }


def fill_forward(values: Tensor) -> Tensor:
    """Replace each NaN by the last number before it; values (N,), the first of which is a number."""
    places = torch.arange(values.shape[0], device=values.device)
    return values[torch.where(torch.isnan(values), 0, places).cummax(0).values]
