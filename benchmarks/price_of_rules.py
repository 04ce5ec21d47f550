"""What weight rules cost beside the 30 experts of 100 random features that they weigh, in blocks.

    python -m benchmarks.price_of_rules

CPU times of one thread; the experts' are those of their filter and their features.
"""

import torch

from benchmarks.bench_weights import NUM_ROWS, F, M, experts, features, rules, run
from benchmarks.price_of_block import Ratio, best_of


@torch.no_grad()
def ratios() -> list[Ratio]:
    """The table's rows."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    Phi = torch.randn(M, NUM_ROWS, F, generator=generator, dtype=torch.float64) / F**0.5
    weights = torch.randn(F, generator=generator, dtype=torch.float64)
    wiggle = torch.randn(NUM_ROWS, generator=generator, dtype=torch.float64)
    y = sum((Phi[m] @ weights for m in range(3)), 0.3 * wiggle)  # three experts see a part of the truth each
    one_pass, log_prob = experts(Phi, y)
    named = rules()
    filtered, mapped, *weighed = best_of([one_pass, features(), *(run(rule, log_prob) for rule in named.values())], 3)
    return [
        (f"M={M}, F={F}: {name} over the experts", cost / (filtered + mapped), 0.2)
        for name, cost in zip(named, weighed, strict=True)
    ]


if __name__ == "__main__":
    for what, ratio, most in ratios():
        print(f"{ratio:8.3f} {'' if most is None else f'(at most {most:.2f})':16s} {what}")
