"""What information is for: error of the log evidence against likelihoods evaluated, by five ways, where it is known.

OMP_NUM_THREADS=1 python benchmarks/bench_information.py [--seeds 2]

Three problems, from one that draws of the prior cover to a spike; the evidence is that of 2^18 draws of the prior, or,
on the spike, of importance sampling with 40 000 likelihoods (the mean of two seeds, which have to agree).
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from gp_ensembles.bayesian_quadrature import (
    Budget,
    Hyperprior,
    InformationPolicy,
    PriorPolicy,
    RegressionProblem,
    Search,
    inferred,
    marginalize,
)
from gp_ensembles.bayesian_quadrature.policies import Policy
from gp_ensembles.bayesian_quadrature.prior import HalfNormal, LogNormal, draw_stratified

MARKS = (40, 80)
SAMPLED = (3_000, 6_000)
SAMPLING = Search(PriorPolicy(), coverage_threshold=1.1)


class Known(NamedTuple):
    """A problem, its log evidence, and the effective share of draws of the prior."""

    problem: RegressionProblem
    log_evidence: float
    share: float


def problem_of(rows: int, noise: float) -> RegressionProblem:
    """Rows of a sine on [0, 4] with noise, and up to two components."""
    one = torch.ones(1, dtype=torch.float64)
    prior = Hyperprior(HalfNormal(0.6 * one), LogNormal(-one, 0.5 * one), 2, noise=inferred(1e-1, 1.0))
    X = torch.linspace(0.0, 4.0, rows, dtype=torch.float64).unsqueeze(-1)
    errors = torch.randn(rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return RegressionProblem(X, torch.sin(1.6 * math.pi * X.squeeze(-1)) + noise * errors, prior)


def known(rows: int, noise: float) -> Known:
    problem = problem_of(rows, noise)
    log_prior = problem.prior.log_prob_components
    parts, effective = [], 0.0
    for n in (1, 2):
        values = problem.evaluate(problem.prior.draw(2**17, n, generator=torch.Generator().manual_seed(9)))
        parts.append(float(log_prior[n - 1] + values.logsumexp(0)) - 17.0 * math.log(2.0))
        effective += float((2.0 * values.logsumexp(0) - (2.0 * values).logsumexp(0)).exp())
    if effective > 1_000.0:
        return Known(problem, float(torch.tensor(parts).logsumexp(0)), effective / 2**18)
    found = []
    for seed in (100, 101):
        budget = Budget(100, draws=40_000, log_evidence_sd=0.03)
        result = marginalize(problem, budget, SAMPLING, generator=torch.Generator().manual_seed(seed))
        assert not result.doubt, result.doubt
        found.append(result.log_evidence)
    assert abs(found[0] - found[1]) < 0.2, found
    return Known(problem, sum(found) / 2, effective / 2**18)


def line(name: str, marks: tuple[int, ...], errors: list[list[float]], seconds: list[float]) -> str:
    cells = []
    for column, spent in zip(zip(*errors, strict=True), seconds, strict=True):
        finite = [error for error in column if math.isfinite(error)]
        typical = math.sqrt(sum(error**2 for error in finite) / len(finite)) if finite else math.nan
        missing = f", {len(column) - len(finite)} refused" if len(finite) < len(column) else ""
        cells.append(f"{typical:.2f} ({spent / len(errors):.1f} s{missing})")
    return f"{name:32}" + "".join(f"{f'{mark}: {cell}':>30}" for mark, cell in zip(marks, cells, strict=True))


def draws_alone(case: Known, seed: int, count: int) -> float:
    """The error of the average likelihood of stratified draws of the prior."""
    cube = draw_stratified(case.problem.prior, count, generator=torch.Generator().manual_seed(seed))
    return float(case.problem.evaluate(cube).logsumexp(0)) - math.log(count) - case.log_evidence


def by_quadrature(policy: Policy, case: Known, seed: int, count: int) -> float:
    search = Search(policy, num_ascents=0, use_periodogram=False)
    result = marginalize(case.problem, Budget(count, draws=0), search, generator=torch.Generator().manual_seed(seed))
    return result.quadrature.log_evidence - case.log_evidence


def by_sampling(policy: Policy, case: Known, seed: int, count: int) -> float:
    """The error of importance sampling from modes that a search with this policy leads to."""
    budget, search = Budget(40, draws=count, log_evidence_sd=0.01), SAMPLING._replace(policy=policy)
    result = marginalize(case.problem, budget, search, generator=torch.Generator().manual_seed(seed))
    return math.inf if result.doubt else result.log_evidence - case.log_evidence


WAYS: dict[str, tuple[tuple[int, ...], Callable[[Known, int, int], float]]] = {
    "average of draws of the prior": (MARKS, draws_alone),
    "quadrature, draws (-R)": (MARKS, partial(by_quadrature, PriorPolicy())),
    "quadrature, information (-I)": (MARKS, partial(by_quadrature, InformationPolicy())),
    "importance sampling": (SAMPLED, partial(by_sampling, PriorPolicy())),
    "the same, its starts from -I": (SAMPLED, partial(by_sampling, InformationPolicy())),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(1)
    for title, rows, noise in (("covered", 8, 0.5), ("between", 16, 0.3), ("spike", 40, 0.03)):
        case = known(rows, noise)
        print(
            f"{title}: {rows} rows, noise {noise}, log evidence {case.log_evidence:.2f}, effective share of draws of "
            f"the prior {case.share:.1g}; root mean square errors in nats over {len(seeds)} seeds, seconds a run"
        )
        for name, (marks, error) in WAYS.items():
            errors, seconds = [], [0.0] * len(marks)
            for seed in seeds:
                row = []
                for place, mark in enumerate(marks):
                    start = time.perf_counter()
                    row.append(error(case, seed, mark))
                    seconds[place] += time.perf_counter() - start
                errors.append(row)
            print(line(name, marks, errors, seconds), flush=True)
        print()


if __name__ == "__main__":
    main()
