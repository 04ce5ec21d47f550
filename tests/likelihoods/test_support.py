"""Targets that a likelihood cannot produce: the message names value, row and remedy."""

import math
import pickle

import pytest
import torch
from gpytorch.likelihoods import Likelihood
from torch.distributions import ContinuousBernoulli, Gamma

from gp_ensembles.likelihoods import LogPoissonLikelihood, MulticlassLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood
from gp_ensembles.likelihoods.response import IllegalTargetError, check_support

NONE = torch.Size([])


def test_targets_are_checked(cases):
    """Legal and missing ones pass; an illegal one is named with its row."""
    for case in cases.values():
        check_targets(case)


def check_targets(case):
    likelihood = case.build(NONE)
    y = torch.tensor([math.nan, *case.legal, math.nan], dtype=torch.float64)
    check_support(likelihood, y)
    check_support(likelihood, y.float())
    batch = case.build(torch.Size([2, 3]) if case.has_batch else NONE)
    check_support(batch, torch.tensor(case.legal, dtype=torch.float64))
    with pytest.raises(ValueError, match="in row 0 is not possible"):
        check_support(batch, torch.tensor(case.illegal, dtype=torch.float64))
    for value in case.illegal:
        y = torch.tensor([math.nan, *case.legal, value, value, case.legal[0]], dtype=torch.float64)
        with pytest.raises(ValueError) as caught:
            check_support(likelihood, y)
        message = str(caught.value)
        assert message.startswith(f"target {value:.10g} in row {len(case.legal) + 1} is not possible: {case.says}; ")
        assert message.endswith(", or set it to NaN if it is missing")


@pytest.mark.parametrize(
    ("likelihood", "remedy"),
    [
        (LogisticLikelihood(), "recode other labels (-1 and 1, say) as 0 and 1, or"),
        (MulticlassLikelihood(3), "recode other labels (1 to 3, say) as 0 to 2, or"),
        (LogPoissonLikelihood(), "counts must be whole numbers from zero; correct it, or"),
    ],
)
def test_the_message_says_how_to_mend_it(likelihood, remedy):
    with pytest.raises(IllegalTargetError) as caught:
        check_support(likelihood, torch.tensor([0.0, 1.0, -1.0]))
    assert remedy in str(caught.value)
    assert (caught.value.row, caught.value.value) == (2, -1.0)
    again = pickle.loads(pickle.dumps(caught.value))  # through a pool of processes, say
    assert str(again) == str(caught.value)


def test_integers_and_empty_blocks_are_legal():
    check_support(LogisticLikelihood(), torch.tensor([0, 1, 1]))
    check_support(LogisticLikelihood(), torch.zeros(0))
    check_support(LogisticLikelihood(), torch.zeros(3, device="meta"))
    with pytest.raises(ValueError, match="target 2 in row 1"):
        check_support(LogisticLikelihood(), torch.tensor([0, 2]))


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"shape \(N,\), got \(2, 1\)"):
        check_support(LogisticLikelihood(), torch.zeros(2, 1))


class Closed(Likelihood):
    """The unit interval with its ends."""

    def forward(self, function_samples, *inputs):
        return ContinuousBernoulli(logits=function_samples)


class Positive(Likelihood):
    def forward(self, function_samples, *inputs):
        return Gamma(2.0 * torch.ones_like(function_samples), function_samples.exp())


def test_the_support_of_a_foreign_likelihood_is_its_distributions_own():
    check_support(Closed(), torch.tensor([0.0, 0.5, 1.0]))
    words = r"target 1\.5 in row 1 is not possible: values must be strictly between 0 and 1"
    with pytest.raises(ValueError, match=words):
        check_support(Closed(), torch.tensor([0.0, 1.5]))
    check_support(Positive(), torch.tensor([0.5, 3.0]))
    with pytest.raises(ValueError, match=r"target -1 in row 0 .* Gamma takes values of GreaterThanEq"):
        check_support(Positive(), torch.tensor([-1.0]))
