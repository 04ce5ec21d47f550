"""What a row costs in blocks: the filter beside the matrix product, the whole of `observe` beside the filter.

    python -m benchmarks.price_of_block

Times are CPU times of one thread; what is compared takes turns. Ratios are costs, so smaller is better, save for those
of the textbook recursion and the published one, which are what others pay.
"""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.bench_stream import ensemble, table
from gp_ensembles.filters import gaussian_state
from gp_ensembles.filters.stream import BlockStream, choose_block_size

Ratio = tuple[str, float, float | None]  # what, how many times as much, and at most how many that were to be


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
            self._stream.stage(Phi, y, False)
            self._stream.commit()


def of_size(num_experts: int, num_features: int, num_rows: int) -> dict[str, float]:
    """CPU seconds a row of the filter, of the whole of `observe`, and of the recursions of others."""
    alone = Filter(num_experts, num_features, num_rows)
    online = ensemble(num_experts, num_features, 8, switching=False, dynamic=False)
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
            (f"{name}: filter over 4F² operations of a matrix product", cost["filter"] / floor, most),
            (f"{name}: the whole of observe over the filter", cost["observe"] / cost["filter"], most_in_all),
            (f"{name}: textbook recursion over observe", cost["textbook"] / cost["observe"], None),
            (
                f"{name}: one expert after another, row by row, over observe",
                cost["published"] / cost["observe"],
                None,
            ),
        ]
    return found


if __name__ == "__main__":
    for what, ratio, most in ratios():
        print(f"{ratio:8.2f} {'' if most is None else f'(at most {most:.2f})':16s} {what}")
