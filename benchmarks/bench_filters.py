"""The exact block filter against the textbook recursion and against the machine's matrix product, one thread."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from gp_ensembles.filters import gaussian_state
from gp_ensembles.filters.stream import BlockStream, choose_block_size


def seconds(action: Callable[[], object], repeats: int) -> float:
    """Median wall time of one call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def peak_flops() -> float:
    a, b = (torch.randn(1024, 1024, dtype=torch.float64) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * 1024**3 / min(seconds(lambda: torch.mm(a, b, out=out), 1) for _ in range(20))


def textbook(Phi: Tensor, y: Tensor, noise: Tensor) -> None:
    """The recursion of one step in plain batched torch, O(F²), as one would write it."""
    mean = Phi.new_zeros(Phi.shape[0], Phi.shape[2])
    covariance = torch.diag_embed(torch.ones_like(mean))
    for t in range(Phi.shape[1]):
        phi = Phi[:, t]
        cross = (covariance @ phi.unsqueeze(-1)).squeeze(-1)
        variance = (phi * cross).sum(-1) + noise
        error = y[t] - (phi * mean).sum(-1)
        gain = cross / variance.unsqueeze(-1)
        mean = mean + gain * error.unsqueeze(-1)
        covariance = covariance - gain.unsqueeze(-1) * cross.unsqueeze(-2)


def measure(num_experts: int, num_features: int, num_rows: int, peak: float) -> None:
    generator = torch.Generator().manual_seed(0)
    Phi = torch.randn(num_experts, num_rows, num_features, generator=generator, dtype=torch.float64)
    Phi /= num_features**0.5
    y = torch.randn(num_rows, generator=generator, dtype=torch.float64)
    noise = torch.full((num_experts,), 0.1, dtype=torch.float64)
    slow = seconds(lambda: textbook(Phi, y, noise), 3) / num_rows
    size = choose_block_size(num_features, num_experts)
    for walk in (None, torch.full((num_experts, 1), 1e-4, dtype=torch.float64)):
        moments = gaussian_state(torch.ones(num_experts, dtype=torch.float64), num_features).moments.clone()
        stream = BlockStream(moments, noise, walk, size)
        blocks = [(Phi[:, i : i + size].contiguous(), y[i : i + size]) for i in range(0, num_rows - size + 1, size)]

        def one_pass(stream: BlockStream = stream, blocks: list[tuple[Tensor, Tensor]] = blocks) -> None:
            for rows, targets in blocks:
                stream.stage(rows, targets, False)
                stream.commit()

        fast = seconds(one_pass, 15) / (len(blocks) * size)
        share = 4 * num_features**2 * num_experts / fast / peak
        kind = "static " if walk is None else "dynamic"
        print(
            f"M={num_experts:3d} F={num_features:4d} block {size} {kind}: {1e6 * fast / num_experts:6.2f} µs per "
            f"expert and step, textbook {1e6 * slow / num_experts:7.2f}, ratio {slow / fast:5.1f}x, "
            f"{share:.0%} of GEMM peak"
        )


def main() -> None:
    torch.set_num_threads(1)
    peak = peak_flops()
    print(f"float64 matrix product peak {peak / 1e9:.1f} GFLOP/s, one thread")
    measure(15, 100, 768, peak)
    measure(6, 500, 256, peak)
    measure(1, 100, 768, peak)


if __name__ == "__main__":
    main()
