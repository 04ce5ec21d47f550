"""What classes cost: the start of an ensemble for two and for more, and a row in blocks.

    python -m benchmarks.price_of_classes

Four inputs, a warm-up of 300 rows, CPU times of one thread.
"""

import time
from dataclasses import replace

import torch

from benchmarks.measured import Cell, keep
from gp_ensembles.ensembles.bases import FourierBasis
from gp_ensembles.ensembles.presets import auto_for
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.ensembles.targets import BinaryTarget, ClassTarget
from gp_ensembles.streaming import OnlineModel, StreamConfig

WARMUP, ROWS = 300, 400


def price(spec: EnsembleSpec, num_classes: int) -> tuple[float, float]:
    """Seconds of the start, and milliseconds a row after it."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(WARMUP + ROWS, 4, generator=generator, dtype=torch.float64)
    level = X[:, 0] + X[:, 1] * X[:, 2] + 0.3 * torch.randn(len(X), generator=generator, dtype=torch.float64)
    edges = level.quantile(torch.arange(1.0, num_classes, dtype=torch.float64) / num_classes)
    y = torch.bucketize(level, edges).double()
    started = time.process_time()
    model = OnlineModel(StreamConfig(spec, warmup=WARMUP)).fit(X[:WARMUP], y[:WARMUP])
    fitted = time.process_time()
    model.observe(X[WARMUP:], y[WARMUP:])
    return fitted - started, 1e3 * (time.process_time() - fitted) / ROWS


def main() -> None:
    torch.set_num_threads(1)
    fewer = (FourierBasis(num_features=20),)
    specs: dict[str, tuple[EnsembleSpec, int]] = {
        "2 (`BinaryTarget`)": (auto_for(BinaryTarget()), 2),
        "3": (auto_for(ClassTarget(3)), 3),
        "5": (auto_for(ClassTarget(5)), 5),
        "3, `bases=(FourierBasis(num_features=20),)`": (replace(auto_for(ClassTarget(3)), bases=fewer), 3),
    }
    rows: list[list[Cell]] = []
    for name, (spec, num_classes) in specs.items():
        rows.append([name, *price(spec, num_classes)])
        print(rows[-1], flush=True)
    columns = ["classes", "start, seconds", "milliseconds a row, in blocks"]
    keep("classes", columns, rows)


if __name__ == "__main__":
    main()
