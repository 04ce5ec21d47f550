"""Weight rules to test, and a decorator that runs a test on every one of them."""

import functools
import inspect

import numpy as np
import torch

from gp_ensembles import meta_learners as meta
from gp_ensembles.meta_learners.switching import group_transition

M = 6


def random_transition(seed, num_experts=M, zeros=0.0):
    rng = np.random.default_rng(seed)
    matrix = rng.random((num_experts, num_experts)) * (rng.random((num_experts, num_experts)) >= zeros)
    matrix += np.eye(num_experts) * 0.1
    return torch.tensor(matrix / matrix.sum(0))


CHAIN = torch.tensor(np.diag([0.9] * 5 + [1.0]) + np.diag([0.1] * 5, -1))  # absorbing: 0 -> 1 -> ... -> 5

BAYES = {
    "averaging": lambda: meta.BayesianModelAveraging(),
    "averaging, prior": lambda: meta.BayesianModelAveraging(torch.tensor([1.0, 2.0, 0.0, 4.0, 5.0, 6.0])),
    "averaging, pruned": lambda: meta.BayesianModelAveraging(prune_below=1e-6),
    "switching, identity": lambda: meta.MarkovSwitching(torch.eye(M, dtype=torch.float64)),
    "switching, sticky": lambda: meta.MarkovSwitching(meta.sticky_transition(M, 0.99)),
    "switching, edoebe": lambda: meta.MarkovSwitching(group_transition("abcabc", 0.01)),
    "switching, random": lambda: meta.MarkovSwitching(random_transition(0)),
    "switching, sparse": lambda: meta.MarkovSwitching(random_transition(1, zeros=0.7)),
    "switching, chain": lambda: meta.MarkovSwitching(CHAIN, torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=torch.float64)),
}
FIRST_ORDER = {
    "dynamic averaging": lambda: meta.DynamicModelAveraging(0.9),
    "dynamic averaging, no forgetting": lambda: meta.DynamicModelAveraging(1.0),
    "fixed share": lambda: meta.FixedShare(0.05),
    "fixed share, none": lambda: meta.FixedShare(0.0),
    "gradient": lambda: meta.ExponentiatedGradient(),
    "gradient, fast": lambda: meta.ExponentiatedGradient(2.0, 0.05),
    "gradient, no share": lambda: meta.ExponentiatedGradient(0.3, 0.0),
    "soft": lambda: meta.SoftBayes(),
    "soft, fixed rate": lambda: meta.SoftBayes(0.3),
}
SECOND_ORDER = {
    "newton": lambda: meta.OnlineNewton(),
    "newton, slow": lambda: meta.OnlineNewton(beta=1.0, delta=0.5, share=0.1),
    "discounted": lambda: meta.DiscountedOnlineNewton(),
    "discounted, quick": lambda: meta.DiscountedOnlineNewton(beta=0.5, discount=0.8, epsilon=3.0, share=0.01),
}
RULES = {
    **BAYES,
    **FIRST_ORDER,
    **SECOND_ORDER,
    "combined": lambda: meta.CombinedRules([meta.FixedShare(0.05), meta.SoftBayes(0.1)], over=meta.FixedShare(0.02)),
    "combined, newton": lambda: meta.CombinedRules(
        [meta.BayesianModelAveraging(), meta.OnlineNewton()], meta.BayesianModelAveraging()
    ),
    "averaged with references": lambda: meta.ReferenceAveraging(meta.FixedShare(0.05), range(M)),
}
# Those that treat all experts alike.
SYMMETRIC = {name: make for name, make in RULES.items() if name not in BAYES} | {
    name: BAYES[name] for name in ("averaging", "averaging, pruned", "switching, sticky")
}


def densities(seed, num_steps, num_experts=M, scale=3.0):
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.normal(size=(num_experts, num_steps)) * scale - 1)


def run(rule, log_prob):
    return rule.update_block(rule.init(log_prob.shape[0], log_prob), log_prob)


def each(rules):
    """Run a test, whose first argument is a rule, on a fresh one of each name; the failures are raised together."""

    def decorate(test):
        @functools.wraps(test)
        def on_all(**fixtures):
            failures = []
            for name, make in rules.items():
                try:
                    test(make(), **fixtures)
                except Exception as error:
                    error.add_note(f"rule: {name}")
                    failures.append(error)
            if failures:
                raise ExceptionGroup(f"{test.__name__} failed", failures)

        signature = inspect.signature(test)
        on_all.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
        return on_all

    return decorate
