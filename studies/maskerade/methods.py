"""The methods of the MASKERADE tables by name."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from gp_ensembles.bayesian_quadrature import (
    Budget,
    InformationPolicy,
    PriorPolicy,
    Search,
    UncertaintyPolicy,
    marginalize,
    paper_prior,
)
from gp_ensembles.bayesian_quadrature.policies import Policy
from studies.maskerade.baselines import (
    matern,
    radial_basis,
    sobol_average,
    spectral_mixture,
)
from studies.maskerade.predictions import Answer, asked
from studies.maskerade.problems import problem_of
from studies.maskerade.sets import Split


class Method(NamedTuple):
    """A way from training rows to a distribution of the test targets.

    Attributes:
        title: What it does, in a line.
        run: Its answer from the rows, the budget of likelihoods and a source of randomness.
    """

    title: str
    run: Callable[[Split, int, torch.Generator], Answer]


def _marginalized(search: Search, of_paper: bool = False) -> Callable[[Split, int, torch.Generator], Answer]:
    def run(split: Split, evaluations: int, generator: torch.Generator) -> Answer:
        prior = paper_prior(split.X, split.y) if of_paper else None
        problem = problem_of(split, prior)
        result = marginalize(problem, Budget(evaluations, draws=0), search, generator=generator)
        if result.num_evaluations < evaluations:
            raise KeyboardInterrupt  # a search that was interrupted returns what it has; this is no finished part
        model = result.model()
        found = {
            "log_evidence": result.quadrature.log_evidence,
            "log_evidence_sd": result.quadrature.log_evidence_sd,
            "best_log_likelihood": result.history[-1].best_log_likelihood,
            "kernels": float(model.num_experts),
            "components": float(result.quadrature.evidence.posterior.argmax()) + 1.0,
            "failed_likelihoods": float(result.num_failed),
        } | {f"seconds_{name}": value for name, value in result.seconds.items()}
        columns = ("evaluations", "log_evidence", "log_evidence_sd", "best_log_likelihood")
        curves = {name: [float(getattr(step, name)) for step in result.history] for name in columns}
        return Answer(asked(model, split.test_X), result.num_evaluations, found, curves)

    return run


_POLICIES: dict[str, tuple[str, Policy]] = {
    "i": ("information", InformationPolicy()),
    "u": ("uncertainty", UncertaintyPolicy()),
    "r": ("prior draws", PriorPolicy()),
}
METHODS: dict[str, Method] = {
    **{
        f"maskerade-{letter}": Method(f"marginalized kernels, {title}, with ascents", _marginalized(Search(policy)))
        for letter, (title, policy) in _POLICIES.items()
    },
    **{
        f"maskerade-{letter}-noascents": Method(
            f"marginalized kernels, {title}, no ascents", _marginalized(Search(policy, num_ascents=0))
        )
        for letter, (title, policy) in _POLICIES.items()
    },
    "maskerade-paper": Method(
        "marginalized kernels, information, the paper's prior and noise, no ascents, no spectral starts",
        _marginalized(Search(InformationPolicy(), num_ascents=0, use_periodogram=False), of_paper=True),
    ),
    "sobol": Method("average over Sobol draws of the prior, weighed by likelihood", sobol_average),
    "sm": Method("one spectral mixture, by gradient from the best prior draws", spectral_mixture),
    "rbf": Method("one RBF kernel by likelihood", radial_basis),
    "matern": Method("one Matern-5/2 kernel by likelihood", matern),
}
