"""Bits that stay the same, and the size of round-off where they do not.

``python -m attacks bits`` fits presets to made rows and streams further ones: cut and gone on from a file, in calls of
other lengths, on other numbers of threads.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from attacks.telling import Table, Telling
from gp_ensembles.ensembles.presets import PRESETS
from gp_ensembles.streaming import OnlineModel, StreamConfig

WARM_UP, ROWS, _CALL = 300, 640, 64


def rows(seed: int) -> tuple[Tensor, Tensor]:
    """Made rows, (N, 4) and (N,)."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(WARM_UP + ROWS, 4, generator=generator, dtype=torch.float64)
    noise = 0.3 * torch.randn(WARM_UP + ROWS, generator=generator, dtype=torch.float64)
    return X, (2 * X[:, 0]).sin() + X[:, 1] + noise


def compare(preset: str, seed: int = 0) -> Iterator[tuple[str, bool, float]]:
    """What was changed, whether all means have the same bits, and the largest difference in target deviations."""
    X, y = rows(seed)
    model = OnlineModel(StreamConfig(PRESETS[preset], warmup=WARM_UP)).fit(X[:WARM_UP], y[:WARM_UP])
    content, scale = model.content(), float(y.std())
    whole = stream(OnlineModel.from_content(content), X, y, _CALL)

    def reported(name: str, other: Tensor) -> tuple[str, bool, float]:
        return name, torch.equal(whole, other), float((whole - other).abs().max()) / scale

    yield reported("the same once more", stream(OnlineModel.from_content(content), X, y, _CALL))
    again = OnlineModel(StreamConfig(PRESETS[preset], warmup=WARM_UP)).fit(X[:WARM_UP], y[:WARM_UP])
    yield reported("fitted once more", stream(again, X, y, _CALL))
    with TemporaryDirectory() as folder:
        yield reported("saved and read after every call", stream(model, X, y, _CALL, Path(folder) / "model.pt"))
    for size in (1, 7, ROWS):
        yield reported(f"{size} row{'s' * (size > 1)} a call", stream(OnlineModel.from_content(content), X, y, size))
    torch.set_num_threads(2)
    try:
        yield reported("two threads", stream(OnlineModel.from_content(content), X, y, _CALL))
    finally:
        torch.set_num_threads(1)


def stream(model: OnlineModel, X: Tensor, y: Tensor, size: int, file: Path | None = None) -> Tensor:
    """Means of the rows after the warm-up, so many a call; saved and read in between where there is a file."""
    means = []
    for start in range(WARM_UP, X.shape[0], size):
        means.append(model.observe(X[start : start + size], y[start : start + size]).mean)
        if file is not None:
            model.save(file)
            model = OnlineModel.load(file)
    return torch.cat(means)


def main(argv: Sequence[str]) -> int:
    """Run the attack; returns 1 if bits differ that may not."""
    telling = Telling("bits", __doc__)
    telling.options.add_argument("--presets", nargs="+", default=["light", "e_doebe", "auto"])
    values = telling.read(argv)
    torch.set_num_threads(1)
    lines, broken = [], False
    for preset in values.presets:
        for place, (name, same, far) in enumerate(compare(preset)):
            broken |= place < 3 and not same
            lines.append([preset, name, "the same bits" if same else f"{far:.0e}"])
    columns = ["preset", "what was changed", "largest difference, in deviations of the target"]
    telling.tell(Table("Means of 640 rows", columns, lines))
    return int(broken)
