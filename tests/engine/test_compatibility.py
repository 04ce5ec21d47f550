"""Experts that cannot be mixed are refused when the ensemble is built, by name."""

import pytest
import torch
from gpytorch.likelihoods import (
    BernoulliLikelihood,
    BetaLikelihood,
    GaussianLikelihood,
    PoissonLikelihood,
    StudentTLikelihood,
)

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.experts import GaussianExpert, LaplaceExpert, MultiOutputExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.likelihoods import LogPoissonLikelihood, MulticlassLikelihood, OrdinalLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood, Probit
from gp_ensembles.meta_learners import FixedShare


def features(batch=1):
    return LinearFeatures(2, torch.ones(batch, dtype=torch.float64))


def with_likelihood(likelihood):
    return LaplaceExpert(features(), likelihood)


def rows(num_rows=30):
    g = torch.Generator().manual_seed(0)
    return torch.randn(num_rows, 2, generator=g, dtype=torch.float64)


MISFITS = {
    "classes": (lambda: [with_likelihood(MulticlassLikelihood(c)) for c in (3, 4)], "3 classes .* 4 classes"),
    "levels": (lambda: [with_likelihood(OrdinalLikelihood(j, Probit())) for j in (3, 4)], "3 classes .* 4 classes"),
    "order": (
        lambda: [with_likelihood(MulticlassLikelihood(3)), with_likelihood(OrdinalLikelihood(3, Probit()))],
        "latent .* unordered classes or ordered levels for both",
    ),
    "labels and counts": (
        lambda: [with_likelihood(LogisticLikelihood()), with_likelihood(LogPoissonLikelihood())],
        "2 classes and LogPoissonLikelihood has no classes",
    ),
    "counts and numbers": (
        lambda: [with_likelihood(LogPoissonLikelihood()), with_likelihood(StudentTLikelihood())],
        "different kinds of targets",
    ),
    "numbers and shares": (
        lambda: [with_likelihood(StudentTLikelihood()), with_likelihood(BetaLikelihood())],
        "different kinds of targets",
    ),
    "outputs": (lambda: [MultiOutputExpert(features(), o) for o in (3, 2)], r"3 output\(s\).* 2 output\(s\)"),
    "one output": (
        lambda: [MultiOutputExpert(features(), 1), GaussianExpert(features())],
        "a single target.*use MultiOutputExpert for both",
    ),
    "a likelihood": (
        lambda: [with_likelihood(GaussianLikelihood()), GaussianExpert(features())],
        "the likelihood GaussianLikelihood.*or neither",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_misfits_are_refused_by_name(case):
    make, words = MISFITS[case]
    one, other = make()
    fitting = make()[0]
    with pytest.raises(ValueError, match=rf"experts 'a' and 'c' cannot be mixed: .*{words}"):
        Ensemble([one, fitting, other], FixedShare(), names=["a", "b", "c"])


def test_the_name_is_that_of_the_object_in_a_batch():
    batch = LaplaceExpert(features(2), MulticlassLikelihood(3))
    with pytest.raises(ValueError, match="experts '0' and '2'"):
        Ensemble([batch, with_likelihood(MulticlassLikelihood(4))], FixedShare())


FITTING = {
    "two classes": (
        lambda: [LogisticLikelihood(), BernoulliLikelihood(), OrdinalLikelihood(2, Probit())],
        lambda X: (X[:, 0] > 0).double(),
    ),
    "heavy tails": (lambda: [StudentTLikelihood(), GaussianLikelihood()], lambda X: X[:, 0]),
    "counts": (lambda: [LogPoissonLikelihood(), PoissonLikelihood()], lambda X: X[:, 0].abs().round()),
}


@pytest.mark.parametrize("case", FITTING)
def test_different_likelihoods_of_one_kind_are_mixed(case):
    likelihoods, target = FITTING[case]
    X = rows(8)
    online = OnlineEnsemble(Ensemble([with_likelihood(each) for each in likelihoods()], FixedShare()))
    predictions = online.observe(X, target(X))
    assert bool(predictions.log_prob.isfinite().all())
