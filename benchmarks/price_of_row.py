"""Cost of a single row over a row in a block and over bare matrix products, and of the start.

    python -m benchmarks.price_of_row

Times are CPU times of one thread, medians and 99th percentiles over rows; models take turns on the same made stream.
With numba installed (extra ``fast``) loops are compiled. The start is a fit over streaming as many rows.
"""

import copy
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from benchmarks.price_of_block import Ratio, ensemble, table
from gp_ensembles.ensembles.presets import PRESETS
from gp_ensembles.filters import gaussian_state
from gp_ensembles.numerics.compiled import IS_COMPILED
from gp_ensembles.streaming import OnlineModel, StreamConfig

WARMUP, BEFORE, TURN, NUM_TURNS = 1000, 500, 50, 8


def stream(num_rows: int) -> tuple[Tensor, Tensor]:
    """Ten inputs that wander, and a target that is smooth in them, jumps with one, and remembers its last value."""
    draw = np.random.default_rng(0)
    X, y, last = np.zeros((num_rows, 10)), np.zeros(num_rows), 0.0
    for t in range(num_rows):
        X[t] = 0.9 * X[t - 1] + draw.normal(size=10)
        last = y[t] = 0.5 * last + np.sin(X[t, 0]) + X[t, 1] * X[t, 2] / 4 + (X[t, 3] > 0) + 0.3 * draw.normal()
    return torch.from_numpy(X), torch.from_numpy(y)


def seconds(action: Callable[[], object]) -> float:
    """CPU time of a call."""
    start = time.thread_time()
    action()
    return time.thread_time() - start


def of_preset(name: str) -> dict[str, np.ndarray]:
    """Seconds per row: of rows in blocks, of rows by themselves, and of rows that are predicted first."""
    X, y = stream(WARMUP + BEFORE + TURN * NUM_TURNS)
    model = OnlineModel(StreamConfig(PRESETS[name], warmup=WARMUP)).fit(X[:WARMUP], y[:WARMUP])
    model.observe(X[WARMUP : WARMUP + BEFORE], y[WARMUP : WARMUP + BEFORE])
    in_blocks, alone, predicting = (copy.deepcopy(model) for _ in range(3))
    found: dict[str, list[float]] = {key: [] for key in ("observed", "predicted", "alone", "asked", "after")}
    for start in range(WARMUP + BEFORE, len(y), TURN):
        rows = slice(start, start + TURN)
        found["predicted"].append(seconds(lambda rows=rows: in_blocks.predict(X[rows])) / TURN)
        found["observed"].append(seconds(lambda rows=rows: in_blocks.observe(X[rows], y[rows])) / TURN)
        for t in range(start, start + TURN):
            row, target = X[t : t + 1], y[t : t + 1]
            found["alone"].append(seconds(lambda row=row, target=target: alone.observe(row, target)))
        for t in range(start, start + TURN):
            row, target = X[t : t + 1], y[t : t + 1]
            found["asked"].append(seconds(lambda row=row: predicting.predict(row)))
            found["after"].append(seconds(lambda row=row, target=target: predicting.observe(row, target)))
    return {key: np.array(values) for key, values in found.items()}


def of_linear(num_experts: int = 12, num_features: int = 100, num_rows: int = 2000) -> tuple[np.ndarray, float]:
    """Seconds of each row of an ensemble by itself, and of the two products with its states."""
    online = ensemble(num_experts, num_features, 8)
    X, y = table(num_rows, 8)
    moments = gaussian_state(torch.ones(num_experts, dtype=torch.float64), num_features).moments.clone()
    Phi = torch.randn(num_experts, 1, num_features, dtype=torch.float64) / num_features
    joint = moments.new_empty(num_experts, 1, num_features + 1)

    def products() -> None:
        torch.bmm(Phi, moments, out=joint)
        moments.baddbmm_(joint[..., :-1].mT, joint, alpha=-1e-9)

    bare, learned = [], []
    for t in range(num_rows):
        row, target = X[t : t + 1], y[t : t + 1]
        learned.append(seconds(lambda row=row, target=target: online.observe(row, target)))
        bare.append(seconds(products))
    return np.array(learned[num_rows // 10 :]), float(np.median(bare))


def ratios() -> list[Ratio]:
    """What rows by themselves cost."""
    torch.set_num_threads(1)
    found: list[Ratio] = []
    extra = "with numba" if IS_COMPILED else "without numba"
    for name in ("auto", "light"):
        took = of_preset(name)
        block, asked = np.median(took["observed"]), np.median(took["predicted"])
        both = np.median(took["asked"] + took["after"])
        found += [
            (f"{name}, {extra}: observe of one row vs. a row in a block", np.median(took["alone"]) / block, 3.0),
            (f"{name}, {extra}: the same, 99th percentile", np.percentile(took["alone"], 99) / block, None),
            (f"{name}, {extra}: predict of one row vs. a row in a block", np.median(took["asked"]) / asked, 3.0),
            (
                f"{name}, {extra}: predict, then observe the same row, vs. both in a block",
                both / (block + asked),
                3.0,
            ),
        ]
    learned, bare = of_linear()
    what = "M=12, F=100: observe of one row vs. two matrix products"
    found.append((what, float(np.median(learned)) / bare, 4.0))
    found.append((f"{what}, 99th percentile", float(np.percentile(learned, 99)) / bare, None))
    return [(what, float(ratio), most) for what, ratio, most in found]


def start_of(name: str) -> float:
    """The fit of a preset to a thousand rows over streaming the next thousand in one call."""
    X, y = stream(2 * WARMUP)
    model = OnlineModel(StreamConfig(PRESETS[name], warmup=WARMUP))
    fitting = min(seconds(lambda: model.fit(X[:WARMUP], y[:WARMUP])) for _ in range(2))
    return fitting / seconds(lambda: model.observe(X[WARMUP:], y[WARMUP:]))


def start_ratios() -> list[Ratio]:
    """What the start costs."""
    torch.set_num_threads(1)
    return [
        ("auto: fit to 1 000 rows vs. streaming 1 000", start_of("auto"), 5.0),
        ("light: fit to 1 000 rows vs. streaming 1 000", start_of("light"), None),
    ]


if __name__ == "__main__":
    for what, ratio, most in [*ratios(), *start_ratios()]:
        print(f"{ratio:8.3f} {'' if most is None else f'(at most {most:.2f})':16s} {what}")
