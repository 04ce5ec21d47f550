"""The methods of the MASKERADE tables by name: as the library does them, and as published."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from gp_ensembles.papers.quadrature import (
    Budget,
    InformationPolicy,
    PriorPolicy,
    RegressionProblem,
    Search,
    UncertaintyPolicy,
    marginalize,
)
from gp_ensembles.papers.quadrature.policies import Policy
from gp_ensembles.papers.quadrature.result import Marginalization
from studies.maskerade.baselines import (
    matern,
    radial_basis,
    sobol_average,
    spectral_mixture,
    variational_spectrum,
)
from studies.maskerade.functional_kernel import functional_kernel
from studies.maskerade.predictions import Answer, asked
from studies.maskerade.problems import problem_of, published_problem_of
from studies.maskerade.sets import Split

Run = Callable[[Split, int, torch.Generator], Answer]


class Method(NamedTuple):
    """A way from training rows to a distribution of the test targets.

    Attributes:
        title: What it does, in a line.
        run: Its answer from the rows, the budget of likelihoods and a source of randomness.
    """

    title: str
    run: Run


def answer_of(result: Marginalization, split: Split, evaluations: int) -> Answer:
    """What a search of so many likelihoods says of the test rows."""
    if result.num_evaluations < evaluations:
        raise KeyboardInterrupt  # a search that was interrupted returns what it has; this is no finished part
    model = result.model()
    found = {
        "best_log_likelihood": result.history[-1].best_log_likelihood,
        "kernels": float(model.num_experts),
        "failed_likelihoods": float(result.num_failed),
    } | {f"seconds_{name}": value for name, value in result.seconds.items()}
    return Answer(asked(model, split.test_X), result.num_evaluations, found, {})


def search_kernels(
    problem: RegressionProblem, evaluations: int, search: Search, generator: torch.Generator
) -> Marginalization:
    """A search without importance sampling, which predictions do not need."""
    return marginalize(problem, Budget(evaluations, draws=0), search, generator=generator)


def published_search(policy: Policy) -> Search:
    """A fifth of the budget drawn from the prior, the policy's batches of twenty, no ascents and no periodogram."""
    return Search(policy, initial_share=0.2, batch_size=20, num_ascents=0, use_periodogram=False)


def _ours(policy: Policy, split: Split, evaluations: int, generator: torch.Generator) -> Answer:
    return answer_of(search_kernels(problem_of(split), evaluations, Search(policy), generator), split, evaluations)


def _theirs(policy: Policy, split: Split, evaluations: int, generator: torch.Generator) -> Answer:
    problem = published_problem_of(split)
    return answer_of(search_kernels(problem, evaluations, published_search(policy), generator), split, evaluations)


_POLICIES: dict[str, tuple[str, Policy]] = {
    "i": ("information", InformationPolicy()),
    "u": ("uncertainty", UncertaintyPolicy()),
    "r": ("prior draws", PriorPolicy()),
}
METHODS: dict[str, Method] = {
    **{
        f"maskerade-{letter}": Method(f"marginalized kernels, {title}, with ascents", partial(_ours, policy))
        for letter, (title, policy) in _POLICIES.items()
    },
    "vssgp": Method("variational sparse spectrum, 10 or 50 frequencies (Gal and Turner, 2015)", variational_spectrum),
    "fkl": Method(
        "functional kernel learning: a Gaussian process over log spectra (Benton et al., 2019)", functional_kernel
    ),
    "sobol": Method("average over Sobol draws of the prior, weighed by likelihood", sobol_average),
    "sm": Method("one spectral mixture, by gradient from the best prior draws", spectral_mixture),
    "rbf": Method("one RBF kernel by likelihood", radial_basis),
    "matern": Method("one Matern-5/2 kernel by likelihood", matern),
}
PUBLISHED: dict[str, Method] = {
    **{
        f"maskerade-{letter}": Method(f"marginalized kernels, {title}, no ascents", partial(_theirs, policy))
        for letter, (title, policy) in _POLICIES.items()
    },
    "sobol": Method("average over Sobol draws of the paper's prior", partial(sobol_average, as_published=True)),
    "sm": Method("one spectral mixture under the paper's prior", partial(spectral_mixture, as_published=True)),
}
AS_PUBLISHED = (
    "the authors' prior (scales and frequencies by the Nyquist frequency, output scale and noise fixed), the energy "
    "distance between kernels, a fifth of the budget drawn and then batches of twenty by the policy, no ascents and no "
    "starts at peaks of the periodogram"
)
