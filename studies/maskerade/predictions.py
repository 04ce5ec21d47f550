"""Predictions of the test rows by a method, and their scores."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.numerics import mixtures
from gp_ensembles.papers.quadrature import KernelMixtureModel
from studies.maskerade.sets import Split

SCORES = (
    "rmse",
    "rmse_standardized",
    "mse_standardized",
    "log_prob",
    "log_prob_raw",
    "log_prob_sum",
    "log_prob_joint",
)


class Answer(NamedTuple):
    """A mixture of joint normal distributions of the M test targets, and what it cost.

    Attributes:
        posterior: The mixture, noise included, over one point of M test rows.
        evaluations: Likelihoods (with or without gradients) spent.
        diagnostics: Further numbers: evidence, best likelihood, kernels kept.
        curves: How the evidence developed; empty for methods that have none.
    """

    posterior: MixturePosterior
    evaluations: int
    diagnostics: dict[str, float]
    curves: dict[str, list[float]]


def asked(model: KernelMixtureModel, X: Tensor) -> MixturePosterior:
    """The joint mixture at all test rows (M, D), noise included.

    Once for all rows: each row on its own would copy the training covariances' factors for every one of them.
    """
    with torch.no_grad():
        posterior = model.posterior(X, observation_noise=True)
    assert isinstance(posterior, MixturePosterior)
    return posterior


def scored(posterior: MixturePosterior, split: Split) -> dict[str, float]:
    r"""Scores of a mixture on the test rows.

    ``rmse`` and ``log_prob_raw`` are in the set's own unit, all others in training deviations. ``log_prob`` is the mean
    over rows of the log density of each row on its own, ``log_prob_sum`` its sum, and ``log_prob_joint`` the log
    density of all rows together: that of the components' joint densities, mixed (what the paper prints as LL).

    Args:
        posterior: The mixture of joint densities.
        split: The rows.
    """
    y = split.test_y
    rmse = float((posterior.mean.squeeze(-1) - y).square().mean().sqrt())
    each = mixtures.log_prob(
        posterior.log_weights.unsqueeze(-1),
        posterior.component_mean.squeeze(-1),
        posterior.component_variance.squeeze(-1),
        y,
    )
    unit = torch.as_tensor(split.unit).to(y)
    return {
        "rmse": rmse * split.unit,
        "rmse_standardized": rmse,
        "mse_standardized": rmse**2,
        "log_prob": float(each.mean()),
        "log_prob_raw": float((each - unit.log()).mean()),
        "log_prob_sum": float(each.sum()),
        "log_prob_joint": float(posterior.log_prob(y.unsqueeze(-1))),
    }
