"""Time of every weight rule per step beside that of the experts it weighs: 30 Gaussian ones of 100 features."""

import os
import time
from collections.abc import Callable

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gp_ensembles.ensembles.presets import default_rule
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.filters import gaussian_state
from gp_ensembles.filters.stream import BlockStream, choose_block_size
from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    DiscountedOnlineNewton,
    DynamicModelAveraging,
    ExponentiatedGradient,
    FixedShare,
    MarkovSwitching,
    MetaLearner,
    OnlineNewton,
    SoftBayes,
    sticky_transition,
)

M, F = int(os.environ.get("EXPERTS", "30")), 100
BLOCK = choose_block_size(F, M)
NUM_ROWS = BLOCK * (2000 // BLOCK)


def rules() -> dict[str, MetaLearner]:
    return {
        "Bayesian model averaging": BayesianModelAveraging(),
        "pruned averaging": BayesianModelAveraging(prune_below=1e-16),
        "Markov switching": MarkovSwitching(sticky_transition(M, 0.99)),
        "dynamic model averaging": DynamicModelAveraging(),
        "fixed share": FixedShare(),
        "exponentiated gradient": ExponentiatedGradient(),
        "Soft-Bayes": SoftBayes(),
        "Online Newton": OnlineNewton(),
        "discounted Online Newton": DiscountedOnlineNewton(),
        "the rule of auto": default_rule(),
    }


def seconds_per_step(action: Callable[[], object], repeats: int) -> float:
    """Median wall time of one pass over the stream, per row."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] / NUM_ROWS


def experts(Phi: Tensor, y: Tensor) -> tuple[Callable[[], object], Tensor]:
    """A pass of the block filter over all rows, and the log densities of its experts (M, T)."""
    noise = torch.logspace(-2, 0, M, dtype=torch.float64)
    blocks = [(Phi[:, i : i + BLOCK].contiguous(), y[i : i + BLOCK]) for i in range(0, NUM_ROWS, BLOCK)]

    def one_pass() -> list[Tensor]:
        moments = gaussian_state(torch.ones(M, dtype=torch.float64), F).moments.clone()
        stream = BlockStream(moments, noise, None, BLOCK)
        log_prob = []
        for rows, targets in blocks:
            log_prob.append(stream.stage(rows, targets, False).log_prob.clone())
            stream.commit()
        return log_prob

    return one_pass, torch.cat(one_pass(), dim=1)


def features() -> Callable[[], object]:
    """A pass over all rows that evaluates the experts' features."""
    kernel = ScaleKernel(RBFKernel(batch_shape=torch.Size([M])), batch_shape=torch.Size([M])).double()
    generator = torch.Generator().manual_seed(1)
    map_ = RandomFourierFeatures.from_kernel(kernel, 10, F, generator=generator).bind()
    X = torch.randn(NUM_ROWS, 10, generator=generator, dtype=torch.float64)
    return lambda: [map_(block) for block in X.split(BLOCK)]


def run(rule: MetaLearner, log_prob: Tensor) -> Callable[[], object]:
    blocks = [block.contiguous() for block in log_prob.split(BLOCK, dim=1)]

    def one_pass() -> None:
        state = rule.init(M, log_prob)
        for block in blocks:
            state, _ = rule.update_block(state, block)

    return one_pass


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    Phi = torch.randn(M, NUM_ROWS, F, generator=generator, dtype=torch.float64) / F**0.5
    weights = torch.randn(F, generator=generator, dtype=torch.float64)
    wiggle = torch.randn(NUM_ROWS, generator=generator, dtype=torch.float64)
    y = sum((Phi[m] @ weights for m in range(3)), 0.3 * wiggle)  # three experts see a part of the truth each
    one_pass, log_prob = experts(Phi, y)
    bare = seconds_per_step(one_pass, 5)
    base = bare + seconds_per_step(features(), 5)
    print(f"M={M} F={F}, blocks of {BLOCK}, float64, one thread: the experts take {1e6 * base:.1f} µs a step")
    print(f"({1e6 * bare:.1f} µs of it for the filter, the rest for random Fourier features of ten inputs)")
    for name, rule in rules().items():
        step = seconds_per_step(run(rule, log_prob), 5)
        print(f"{name:26s} {1e6 * step:7.2f} µs a step, {step / base:5.1%} of the experts")


if __name__ == "__main__":
    main()
