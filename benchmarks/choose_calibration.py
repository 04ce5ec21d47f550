"""Choice of recalibration and interval levels: the tables in the section of ``README.md`` on them.

Both see probability integral transforms (PIT) and widths alone, those of the mixtures of a preset on sets of a folder:

    python -m benchmarks.choose_calibration --data FOLDER [--preset light] [--sets ccpp,kin8nm] [--rows 6000]

The fifths of a set are those of its predicted widths over all rows.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaln, ndtri

from gp_ensembles.calibration import IntervalLevels
from gp_ensembles.calibration.recalibration import init_recalibration, map_components, recalibrate_block
from gp_ensembles.data.folder import load_folder
from gp_ensembles.ensembles.presets import PRESETS
from gp_ensembles.streaming import OnlineModel, StreamConfig

Array = NDArray[np.float64]
SETS = "sml_ordered,air_quality,bike_hourly,sarcos_ias,kin8nm,brent_oil,ccpp,appliances_energy,elevators_ordered"
WARMUP, CHUNK = 1000, 256
SHAPES = (0.6, 0.8, 1, 1.25, 1.6, 2.2, 3.2)
BETAS = [(a, b) for a in SHAPES for b in SHAPES if max(a / b, b / a) < 1.7 and (a, b) != (1, 1)]
SHIFTS = (-0.5, -0.25, -0.1, 0, 0.1, 0.25, 0.5)
COARSE = [(m, s) for s in (0.3, 0.45, 0.6, 0.75, 0.88, 1, 1.15, 1.4, 1.8) for m in SHIFTS if (m, s) != (0, 1)]


class Sequences(NamedTuple):
    """PIT values and widths of the predictions of a stream, (N,) each."""

    u: Array
    width: Array


def of_stream(folder: Path, name: str, preset: str, num_rows: int) -> Sequences:
    """What the mixtures of a preset say of the rows of a set that have a target."""
    table = load_folder(folder, name)
    config = StreamConfig(PRESETS[preset], warmup=WARMUP, recalibrate=False, coverages=())
    model = OnlineModel(config).fit(table.X[:WARMUP], table.y[:WARMUP])
    found = []
    for X, y in zip(table.X[WARMUP:num_rows].split(CHUNK), table.y[WARMUP:num_rows].split(CHUNK), strict=True):
        predicted = model.observe(X, y).distribution
        found.append(torch.stack([predicted.cdf(y), predicted.typical_width()])[:, ~y.isnan()])
    return Sequences(*torch.cat(found, dim=-1).numpy())


def two_shares(log_ratio: Array, inner: float = 0.002, outer: float = 0.002) -> Array:
    """Gains of candidates (K, N) under a fixed share, and of that and the identity under another."""
    density = np.exp(log_ratio)
    weights, weight = np.full(len(density), 1 / len(density)), 0.5
    gains = np.empty(density.shape[1])
    for t, row in enumerate(density.T):
        mixed = weights @ row
        total = weight * mixed + 1 - weight
        gains[t] = np.log(total)
        weights = (1 - inner) * weights * row / mixed + inner / len(weights)
        weight = (1 - outer) * weight * mixed / total + outer / 2
    return gains


def beta_ratios(u: Array) -> Array:
    """Log densities of Beta distributions."""
    u = u.clip(1e-6, 1 - 1e-6)
    return np.stack([(a - 1) * np.log(u) + (b - 1) * np.log1p(-u) - betaln(a, b) for a, b in BETAS])


def normal_ratios(u: Array) -> Array:
    """Log densities of normal distributions of the normal score, over that of the standard one."""
    z = ndtri(u.clip(1e-6, 1 - 1e-6))
    return np.stack([0.5 * (z**2 - ((z - m) / s) ** 2) - np.log(s) for m, s in COARSE])


def ours(given: Sequences) -> tuple[Array, Sequences]:
    """Gains of the library's recalibration, and PIT values and widths after it."""
    pit = torch.as_tensor(given.u)
    _, (log_weights, gain, moved) = recalibrate_block(init_recalibration(pit), pit)
    squares = sum(part.square() for part in map_components(pit))
    return gain.numpy(), Sequences(moved.numpy(), given.width * (squares @ log_weights.exp()).sqrt().numpy())


GAINS: dict[str, Callable[[Array], Array]] = {
    "Beta, shares .002": lambda u: two_shares(beta_ratios(u)),
    "Beta, share .01": lambda u: two_shares(beta_ratios(u), 0.01),
    "normal scores, share .002": lambda u: two_shares(normal_ratios(u)),
    "normal scores, share .05": lambda u: two_shares(normal_ratios(u), 0.05),
    "library": lambda u: ours(Sequences(u, u))[0],
}


def fixed(given: Sequences, alpha: float) -> tuple[Array, Array]:
    """The central interval."""
    u = given.u
    return np.full_like(u, alpha / 2), np.full_like(u, 1 - alpha / 2)


def adaptive(rate: float) -> Callable[[Sequences, float], tuple[Array, Array]]:
    """Adaptive conformal inference (Gibbs and Candes 2021)."""

    def run(given: Sequences, alpha: float) -> tuple[Array, Array]:
        level, levels = alpha, np.empty_like(given.u)
        for t, value in enumerate(given.u):
            levels[t] = max(level, 0.0)
            level += rate * (alpha - (not levels[t] / 2 < value < 1 - levels[t] / 2))
        return levels / 2, 1 - levels / 2

    return run


def many_rates(given: Sequences, alpha: float) -> tuple[Array, Array]:
    """DtACI (Gibbs and Candes 2024): several rates, weighed by their pinball losses; their mean level."""
    rates, horizon = np.array([0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128]), 500
    num, u = len(rates), given.u
    spread = (1 - alpha) ** 2 * alpha**3 + alpha**2 * (1 - alpha) ** 3
    eta = np.sqrt(3 / horizon * (np.log(num * horizon) + 2) / spread)
    level, weights, levels = np.full(num, alpha), np.full(num, 1 / num), np.empty_like(u)
    for t, value in enumerate(u):
        levels[t] = max(float(weights @ level), 0.0)
        best = 2 * min(value, 1 - value)
        weights = weights * np.exp(-eta * (alpha * (best - level) - np.minimum(0, best - level)))
        weights = (1 - 0.5 / horizon) * weights / weights.sum() + 0.5 / horizon / num
        level = level + rates * (alpha - (level > best))
    return levels / 2, 1 - levels / 2


def tracked(given: Sequences, alpha: float) -> tuple[Array, Array]:
    """The library's levels."""
    pit, levels = torch.as_tensor(given.u), IntervalLevels((1 - alpha,))
    output = levels.update_block(levels.init(pit), pit, torch.as_tensor(given.width))[1]
    found = output.levels[:, 0].numpy()
    return found[0], found[1]


def alike(given: Sequences, alpha: float) -> tuple[Array, Array]:
    """The library's levels, one fifth for all."""
    return tracked(given._replace(width=np.ones_like(given.width)), alpha)


LEVELS: dict[str, Callable[[Sequences, float], tuple[Array, Array]]] = {
    "central": fixed,
    "ACI .005": adaptive(0.005),
    "ACI .01": adaptive(0.01),
    "DtACI": many_rates,
    "library, without fifths": alike,
    "library": tracked,
}


def kept(given: Sequences, lower: Array, upper: Array, alpha: float) -> tuple[float, ...]:
    """Coverage, windows of 500 near it, relative width, infinite ends, least and greatest coverage of a fifth."""
    hits = ((lower < given.u) & (given.u < upper)).astype(float)
    windows = np.convolve(hits, np.ones(500) / 500, "valid") if len(hits) >= 500 else np.array([hits.mean()])
    spread = np.minimum(ndtri(upper), 6) - np.maximum(ndtri(lower), -6)
    width = (spread * given.width).mean() / (-2 * ndtri(alpha / 2) * given.width.mean())
    near = np.abs(windows - 1 + alpha) <= alpha / 2 + 1e-9
    fifths = [hits[part].mean() for part in np.array_split(np.argsort(given.width, kind="stable"), 5)]
    infinite = ((lower <= 0) | (upper >= 1)).mean()
    return tuple(map(float, (hits.mean(), near.mean(), width, infinite, min(fifths), max(fifths))))


def row(name: str, cells: Iterable[object]) -> str:
    """A line of a table."""
    return f"| {name} | " + " | ".join(f"{c:.4f}" if isinstance(c, float) else str(c) for c in cells) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of data sets")
    parser.add_argument("--preset", default="light", choices=list(PRESETS))
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--rows", type=int, default=6000)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    sequences = {name: of_stream(options.data, name, options.preset, options.rows) for name in options.sets.split(",")}
    print(row("gain, nats per row", GAINS))
    gains = np.array([[rule(found.u).mean() for rule in GAINS.values()] for found in sequences.values()])
    print(row("mean", map(float, gains.mean(0))))
    print(row("worst", map(float, gains.min(0))))
    after = {name: ours(found)[1] for name, found in sequences.items()}
    heads = ("sets within", "worst", "windows", "width", "infinite", "least fifth", "greatest", "sets whose fifths are")
    for alpha in (0.5, 0.1, 0.02):
        print(row(f"coverage {1 - alpha:g}", heads))
        for is_recalibrated, values in enumerate((sequences, after)):
            for name, rule in LEVELS.items():
                each = {key: kept(found, *rule(found, alpha), alpha) for key, found in values.items()}
                table = np.array(list(each.values()))
                off = np.abs(table[:, 0] - 1 + alpha)
                near = (np.abs(table[:, 4:] - 1 + alpha) <= 0.3 * alpha + 1e-9).all(1)
                within = [f"{int(ok.sum())}/{len(off)}" for ok in (off <= alpha / 20, near)]
                means, ends = map(float, table[:, 1:4].mean(0)), (float(table[:, 4].min()), float(table[:, 5].max()))
                label = f"{name}{', recalibrated' * is_recalibrated}"
                print(row(label, (within[0], float(off.max()), *means, *ends, within[1])))
    print(row("library, 0.9, recalibrated", ("coverage", "windows", "width", "infinite", "least fifth", "greatest")))
    for name, found in after.items():
        print(row(name, kept(found, *tracked(found, 0.1), 0.1)))


if __name__ == "__main__":
    main()
