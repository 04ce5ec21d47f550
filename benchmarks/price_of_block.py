"""Cost per row in blocks: the filter over the matrix product, `observe` over the filter, and weight rules.

    python -m benchmarks.price_of_block

Times are CPU times of one thread; what is compared takes turns. Ratios are costs, so smaller is better, save for those
of the textbook recursion and the published one, which are what others pay. Rules are compared with the 30 experts of
100 random features that they weigh, filter and features.
"""

import time
from collections.abc import Callable, Sequence

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.ensembles.presets import default_rule
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.features.batch import stack_kernels
from gp_ensembles.filters import gaussian_state
from gp_ensembles.filters.rows import Rows
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

Ratio = tuple[str, float, float | None]  # what, how many times as much, and at most how many that were to be
NUM_EXPERTS, NUM_FEATURES = 30, 100  # of the weight rules
BLOCK = choose_block_size(NUM_FEATURES, NUM_EXPERTS)
NUM_ROWS = BLOCK * (2000 // BLOCK)


def best_of(actions: Sequence[Callable[[], object]], rounds: int = 7) -> list[float]:
    """CPU seconds of each action, the least of some rounds, in which they take turns."""
    best = [float("inf")] * len(actions)
    for _ in range(rounds):
        for number, action in enumerate(actions):
            start = time.thread_time()
            action()
            best[number] = min(best[number], time.thread_time() - start)
    return best


def product_rate() -> float:
    """Floating-point operations a second of a large matrix product."""
    a, b = (torch.randn(1024, 1024, dtype=torch.float64) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * 1024**3 / best_of([lambda: torch.mm(a, b, out=out)], 12)[0]


def read_rate() -> float:
    """Bytes a second that a sum reads from memory."""
    numbers = torch.ones(16_000_000, dtype=torch.float64)
    return numbers.nbytes / best_of([numbers.sum], 12)[0]


def ensemble(num_experts: int, num_features: int, num_inputs: int) -> OnlineEnsemble:
    """Experts on random features, each with a kernel of its own."""
    kernels = []
    for m in range(num_experts):
        kernel = ScaleKernel(RBFKernel(ard_num_dims=num_inputs)).double()
        kernel.base_kernel.lengthscale = 0.5 * 1.3**m
        kernels.append(kernel)
    features = RandomFourierFeatures.from_kernel(
        stack_kernels(kernels), num_inputs, num_features, generator=torch.Generator().manual_seed(0)
    )
    return OnlineEnsemble(Ensemble([GaussianExpert(features)], BayesianModelAveraging()))


def table(num_rows: int, num_inputs: int) -> tuple[Tensor, Tensor]:
    """A made stream."""
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(num_rows, num_inputs, generator=generator, dtype=torch.float64)
    y = torch.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.2 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    return X, y


def textbook(Phi: Tensor, y: Tensor, noise: Tensor) -> None:
    """The recursion of one step, as one would write it for a batch of experts."""
    mean = Phi.new_zeros(Phi.shape[0], Phi.shape[2])
    covariance = torch.diag_embed(torch.ones_like(mean))
    for t in range(Phi.shape[1]):
        phi = Phi[:, t]
        cross = (covariance @ phi.unsqueeze(-1)).squeeze(-1)
        variance = (phi * cross).sum(-1) + noise
        gain = cross / variance.unsqueeze(-1)
        mean = mean + gain * (y[t] - (phi * mean).sum(-1)).unsqueeze(-1)
        covariance = covariance - gain.unsqueeze(-1) * cross.unsqueeze(-2)


def published(Phi: Tensor, y: Tensor, noise: Tensor) -> None:
    """One expert after another, each a scan over the rows, as the published codes are made."""
    for number in range(len(Phi)):
        textbook(Phi[number : number + 1], y, noise[number : number + 1])


class Filter:
    """The block filter alone, on given features."""

    def __init__(self, num_experts: int, num_features: int, num_rows: int) -> None:
        generator = torch.Generator().manual_seed(0)
        size = choose_block_size(num_features, num_experts)
        self.num_rows = num_rows // size * size
        shape = num_experts, self.num_rows, num_features
        self.Phi = torch.randn(shape, generator=generator, dtype=torch.float64) / num_features**0.5
        self.y = torch.randn(self.num_rows, generator=generator, dtype=torch.float64)
        self.noise = torch.full((num_experts,), 0.1, dtype=torch.float64)
        moments = gaussian_state(torch.ones(num_experts, dtype=torch.float64), num_features).moments.clone()
        self._stream = BlockStream(moments, self.noise, None, size)
        self._blocks = [
            (self.Phi[:, start : start + size].contiguous(), self.y[start : start + size])
            for start in range(0, self.num_rows, size)
        ]

    def run(self) -> None:
        """Learn all rows."""
        for Phi, y in self._blocks:
            self._stream.set_block(Phi, y, False)
            self._stream.condition(Rows(y))
            self._stream.commit()


def of_size(num_experts: int, num_features: int, num_rows: int) -> dict[str, float]:
    """CPU seconds per row of the filter, of the whole of `observe`, and of the recursions of others."""
    alone = Filter(num_experts, num_features, num_rows)
    online = ensemble(num_experts, num_features, 8)
    X, y = table(alone.num_rows, 8)
    few = 72 if num_features <= 100 else 16
    some = alone.Phi[:, :few], alone.y[:few], alone.noise
    ours = best_of([alone.run, lambda: online.observe(X, y)], 12)
    others = best_of([lambda: textbook(*some), lambda: published(*some)], 3)
    rows = [alone.num_rows] * 2 + [few] * 2
    names = ("filter", "observe", "textbook", "published")
    return {name: seconds / n for name, seconds, n in zip(names, ours + others, rows, strict=True)}


@torch.no_grad()
def ratios() -> list[Ratio]:
    """The table's rows."""
    torch.set_num_threads(1)
    found: list[Ratio] = []
    rate = product_rate()
    for num_experts, num_features, num_rows, most, most_in_all in ((15, 100, 720, 2.0, 1.5), (6, 500, 768, 1.43, 1.15)):
        name, cost = f"M={num_experts}, F={num_features}", of_size(num_experts, num_features, num_rows)
        floor = 4 * num_experts * num_features**2 / rate
        found += [
            (f"{name}: filter vs. 4F² operations of a matrix product", cost["filter"] / floor, most),
            (f"{name}: all of observe vs. the filter", cost["observe"] / cost["filter"], most_in_all),
            (f"{name}: textbook recursion vs. observe", cost["textbook"] / cost["observe"], None),
            (
                f"{name}: one expert at a time, row by row, vs. observe",
                cost["published"] / cost["observe"],
                None,
            ),
        ]
    return found


def rules() -> dict[str, MetaLearner]:
    """Every weight rule."""
    return {
        "Bayesian model averaging": BayesianModelAveraging(),
        "pruned averaging": BayesianModelAveraging(prune_below=1e-16),
        "Markov switching": MarkovSwitching(sticky_transition(NUM_EXPERTS, 0.99)),
        "dynamic model averaging": DynamicModelAveraging(),
        "fixed share": FixedShare(),
        "exponentiated gradient": ExponentiatedGradient(),
        "Soft-Bayes": SoftBayes(),
        "Online Newton": OnlineNewton(),
        "discounted Online Newton": DiscountedOnlineNewton(),
        "the rule of auto": default_rule(),
    }


def experts(Phi: Tensor, y: Tensor) -> tuple[Callable[[], object], Tensor]:
    """A pass of the block filter over all rows, and the log densities of its experts (M, T)."""
    noise = torch.logspace(-2, 0, NUM_EXPERTS, dtype=torch.float64)
    blocks = [(Phi[:, i : i + BLOCK].contiguous(), y[i : i + BLOCK]) for i in range(0, NUM_ROWS, BLOCK)]

    def one_pass() -> list[Tensor]:
        moments = gaussian_state(torch.ones(NUM_EXPERTS, dtype=torch.float64), NUM_FEATURES).moments.clone()
        stream = BlockStream(moments, noise, None, BLOCK)
        log_prob = []
        for rows, targets in blocks:
            stream.set_block(rows, targets, False)
            log_prob.append(stream.condition(Rows(targets)).log_prob.clone())
            stream.commit()
        return log_prob

    return one_pass, torch.cat(one_pass(), dim=1)


def features() -> Callable[[], object]:
    """A pass over all rows that evaluates the experts' features."""
    kernel = ScaleKernel(
        RBFKernel(batch_shape=torch.Size([NUM_EXPERTS])), batch_shape=torch.Size([NUM_EXPERTS])
    ).double()
    generator = torch.Generator().manual_seed(1)
    map_ = RandomFourierFeatures.from_kernel(kernel, 10, NUM_FEATURES, generator=generator).bind()
    X = torch.randn(NUM_ROWS, 10, generator=generator, dtype=torch.float64)
    return lambda: [map_(block) for block in X.split(BLOCK)]


def weighing(rule: MetaLearner, log_prob: Tensor) -> Callable[[], object]:
    """A pass of a rule over the log densities (M, T)."""
    blocks = [block.contiguous() for block in log_prob.split(BLOCK, dim=1)]

    def one_pass() -> None:
        state = rule.init(NUM_EXPERTS, log_prob)
        for block in blocks:
            state, _ = rule.update_block(state, block)

    return one_pass


@torch.no_grad()
def rule_ratios() -> list[Ratio]:
    """What weight rules take of the time of the experts that they weigh."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    Phi = torch.randn(NUM_EXPERTS, NUM_ROWS, NUM_FEATURES, generator=generator, dtype=torch.float64) / NUM_FEATURES**0.5
    weights = torch.randn(NUM_FEATURES, generator=generator, dtype=torch.float64)
    wiggle = torch.randn(NUM_ROWS, generator=generator, dtype=torch.float64)
    y = sum((Phi[m] @ weights for m in range(3)), 0.3 * wiggle)  # three experts see a part of the truth each
    one_pass, log_prob = experts(Phi, y)
    named = rules()
    filtered, mapped, *weighed = best_of(
        [one_pass, features(), *(weighing(rule, log_prob) for rule in named.values())], 3
    )
    return [
        (f"M={NUM_EXPERTS}, F={NUM_FEATURES}: {name} vs. the experts", cost / (filtered + mapped), 0.2)
        for name, cost in zip(named, weighed, strict=True)
    ]


if __name__ == "__main__":
    for what, ratio, most in [*ratios(), *rule_ratios()]:
        print(f"{ratio:8.3f} {'' if most is None else f'(at most {most:.2f})':16s} {what}")
