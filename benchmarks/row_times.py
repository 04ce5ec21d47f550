"""Times of single rows, as a robot at 1 kHz learns them: typical, 99.9 % and worst, and what the slow ones did.

    python -m benchmarks.row_times [--rows 100000] [--presets light auto] [--seed 0]

CPU times of one thread over a made-up stream of six inputs. A row into which a refit, a training or a drop falls is
named by it; the second line of a preset has the same stream with this work moved to calls of ``maintain`` between rows,
which are timed by themselves.
"""

import argparse
import gc
import time
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.ensembles import presets
from gp_ensembles.streaming import OnlineModel, StreamConfig

WARM_UP, BETWEEN = 1000, 200  # rows of the warm-up, and between two calls of ``maintain``


def stream(num_rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """A smooth function of six inputs that drifts, with noise and a few outliers."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(num_rows, 6, generator=g, dtype=torch.float64)
    drift = torch.linspace(0, 3, num_rows, dtype=torch.float64)
    y = (
        (X[:, 0] + drift).sin()
        + 0.5 * X[:, 1] * X[:, 2]
        + 0.1 * torch.randn(num_rows, generator=g, dtype=torch.float64)
    )
    return X, y + 5.0 * (torch.rand(num_rows, generator=g) < 1e-3)


def measured(name: str, X: Tensor, y: Tensor, *, is_maintained: bool) -> list[str]:
    """Lines on the rows of a preset."""
    model = OnlineModel(StreamConfig(getattr(presets, name), warmup=WARM_UP))
    model.observe(X[:WARM_UP], y[:WARM_UP])
    times, calls, by_work = [], [], defaultdict[str, list[float]](list)
    gc.disable()  # a pause of Python's, not of the model's
    for row in tqdm(range(WARM_UP, len(y)), desc=name, unit="row"):
        if is_maintained and (row - WARM_UP) % BETWEEN == 0:
            start = time.thread_time()
            model.maintain(BETWEEN)
            calls.append(time.thread_time() - start)
        due = [f"{work.what} of {work.name}" for work in model.upkeep if work.rows == 1]
        start = time.thread_time()
        model.observe(X[row : row + 1], y[row : row + 1])
        times.append(time.thread_time() - start)
        for work in due or ["nothing special"]:
            by_work[work].append(times[-1])
    gc.enable()
    kind = f"maintained every {BETWEEN} rows" if is_maintained else "as it comes"
    lines = [f"{name}, {kind}: {_text(times)}"]
    lines += [f"    {work}: {len(own)} rows, {_text(own)}" for work, own in sorted(by_work.items())]
    return [*lines, f"    calls of maintain: {len(calls)}, {_text(calls)}"] if calls else lines


def _text(times: list[float]) -> str:
    median, high, worst = (1e3 * value for value in (np.median(times), np.quantile(times, 0.999), np.max(times)))
    return f"median {median:.3g} ms, 99.9 % {high:.3g} ms, worst {worst:.3g} ms"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--presets", nargs="+", default=["light", "auto"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    X, y = stream(options.rows + WARM_UP, options.seed)
    for name in options.presets:
        for is_maintained in (False, True):
            print("\n".join(measured(name, X, y, is_maintained=is_maintained)), flush=True)


if __name__ == "__main__":
    main()
