"""One table of all likelihoods: how each is built, its densities by other means, what it can and cannot produce."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import mpmath
import numpy as np
import pytest
import torch
from gpytorch.constraints import Positive
from gpytorch.likelihoods import (
    BernoulliLikelihood,
    BetaLikelihood,
    GaussianLikelihood,
    LaplaceLikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    SoftmaxLikelihood,
    StudentTLikelihood,
)
from scipy import stats

from gp_ensembles.likelihoods import CountLikelihood, LogPoissonLikelihood, MulticlassLikelihood, OrdinalLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood, Logit, Probit

NONE = torch.Size([])


class Case(NamedTuple):
    build: Callable  # batch shape -> likelihood
    reference: Callable  # (likelihood of one expert, latent value, target) -> density or probability
    legal: tuple
    illegal: tuple
    says: str  # in the message about illegal targets
    has_batch: bool = True


def filled(likelihood):
    """float64, with different parameters for each expert."""
    likelihood = likelihood.double()
    generator = torch.Generator().manual_seed(3)
    for parameter in likelihood.parameters():
        shift = torch.empty_like(parameter).normal_(generator=generator)
        parameter.data += 0.4 * shift * parameter.requires_grad
    return likelihood


def single(make, reference, support):
    """Of a likelihood without parameters of each expert."""
    return Case(lambda batch_shape: filled(make()), reference, *support, has_batch=False)


def batched(make, reference, support):
    return Case(lambda batch_shape: filled(make(batch_shape=batch_shape)), reference, *support)


def number(tensor):
    return float(tensor.detach().reshape(()))


def softplus(f):
    return float(np.logaddexp(0, f))


def ordinal(cdf):
    def reference(likelihood, f, y):
        cuts = [-mpmath.inf, *likelihood.cut_points.detach().tolist(), mpmath.inf]
        scale = number(likelihood.scale)
        y = int(y)
        return cdf((cuts[y + 1] - f) / scale) - cdf((cuts[y] - f) / scale)

    return reference


def sigmoid(z):
    return 1 / (1 + mpmath.exp(-z)) if mpmath.isfinite(z) else mpmath.mpf(z > 0)


def negative_binomial(likelihood, f, y):
    p = number(likelihood.probs)
    return stats.nbinom.pmf(y, softplus(f) * (1 - p) / p, 1 - p)


def zero_inflated(likelihood, f, y):
    log_scale, log_size, log_odds = (number(part) for part in likelihood.parts)
    size, inflation = math.exp(log_size), float(sigmoid(log_odds))
    plain = stats.nbinom.pmf(y, size, size / (size + math.exp(log_scale + f)))
    return inflation * (y == 0) + (1 - inflation) * plain


def beta(likelihood, f, y):
    s, mixture = number(likelihood.scale), float(sigmoid(f))
    return stats.beta.pdf(y, mixture * s + 1, (1 - mixture) * s + 1)


def student_t(likelihood, f, y):
    return stats.t.pdf(y, number(likelihood.deg_free), loc=f, scale=math.sqrt(number(likelihood.noise)))


def laplace(likelihood, f, y):
    return stats.laplace.pdf(y, f, math.sqrt(number(likelihood.noise)))


def gaussian(likelihood, f, y):
    return stats.norm.pdf(y, f, math.sqrt(number(likelihood.noise)))


def softmax(likelihood, f, y):
    mixing = getattr(likelihood, "mixing_weights", None)
    logits = f if mixing is None else f @ mixing.detach().mT
    return float(logits.softmax(-1)[int(y)])


COUNTS = ((0.0, 1.0, 7.0), (-1.0, 1.5, math.inf), "counts must be whole numbers from zero")
LABELS = ((0.0, 1.0), (-1.0, 0.5, 2.0), "labels must be 0 or 1")
LEVELS = ((0.0, 1.0, 2.0, 3.0), (-1.0, 4.0, 1.5), "class numbers must be whole, 0 to 3")
REALS = ((-2.0, 0.0, 3.5), (math.inf, -math.inf), "values must be finite")
FRACTIONS = ((0.01, 0.5, 0.99), (0.0, 1.0, -0.1, 1.1), "values must be strictly between 0 and 1")

SCALAR = {
    "logistic": single(LogisticLikelihood, lambda _, f, y: sigmoid((2 * y - 1) * mpmath.mpf(f)), LABELS),
    "probit": single(BernoulliLikelihood, lambda _, f, y: mpmath.ncdf((2 * y - 1) * f), LABELS),
    "log_poisson": single(LogPoissonLikelihood, lambda _, f, y: stats.poisson.pmf(y, math.exp(f)), COUNTS),
    "poisson": single(PoissonLikelihood, lambda _, f, y: stats.poisson.pmf(y, softplus(f)), COUNTS),
    "ordinal_probit": batched(partial(OrdinalLikelihood, 4, Probit()), ordinal(mpmath.ncdf), LEVELS),
    "ordinal_logit": batched(
        partial(OrdinalLikelihood, 4, Logit(), scale_constraint=Positive()), ordinal(sigmoid), LEVELS
    ),
    "negative_binomial": batched(NegativeBinomialLikelihood, negative_binomial, COUNTS),
    "zero_inflated": batched(
        lambda batch_shape: CountLikelihood(["zero inflated"] * batch_shape.numel(), batch_shape), zero_inflated, COUNTS
    ),
    "student_t": batched(StudentTLikelihood, student_t, REALS),
    "beta": batched(BetaLikelihood, beta, FRACTIONS),
    "laplace": batched(LaplaceLikelihood, laplace, REALS),
    "gaussian": batched(GaussianLikelihood, gaussian, REALS),
}
VECTOR = {
    "multiclass": single(partial(MulticlassLikelihood, 4), softmax, LEVELS),
    "softmax": single(partial(SoftmaxLikelihood, num_features=4, num_classes=4), softmax, LEVELS),
    "softmax_plain": single(partial(SoftmaxLikelihood, num_classes=4, mixing_weights=False), softmax, LEVELS),
}


@pytest.fixture(params=SCALAR)
def scalar_case(request):
    return SCALAR[request.param]


@pytest.fixture(params=VECTOR)
def vector_case(request):
    return VECTOR[request.param]


@pytest.fixture(params=SCALAR | VECTOR)
def case(request):
    return (SCALAR | VECTOR)[request.param]


@pytest.fixture
def cases():
    """All of them, for checks that are one item."""
    return SCALAR | VECTOR


@pytest.fixture
def take():
    """One expert's likelihood out of a batch."""

    def take(case, likelihood, index):
        if not case.has_batch:
            return likelihood
        single = case.build(NONE)
        rows = {name: value[index] for name, value in likelihood.named_parameters()}
        for name, parameter in single.named_parameters():
            parameter.data.copy_(rows[name])
        return single

    return take
