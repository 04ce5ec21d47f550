"""Choice of recalibration and interval levels: the tables in the section of ``README.md`` on them.

Both see probability integral transforms (PIT) alone, so the experts' stored one-step-ahead predictions are enough. The
arena stores them (``--experts true``): a file for each set with the arrays ``mean``, ``variance`` and ``log_weights``
(M, N) and ``y`` (N,), standardized.

    python benchmarks/choose_calibration.py FOLDER

Each set gives two sequences: of the mixture of the experts, and of that of the experts and their innovation models.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaln, ndtri

from gp_ensembles.calibration import IntervalLevels
from gp_ensembles.calibration.recalibration import init_recalibration, map_components, update_recalibration
from gp_ensembles.ensembles.presets import INNOVATIONS, default_rule
from gp_ensembles.innovations.bank import InnovationBank
from gp_ensembles.numerics import normal, normal_scores, student_t

Array = NDArray[np.float64]
BLOCK = 64
SHAPES = (0.6, 0.8, 1, 1.25, 1.6, 2.2, 3.2)
BETAS = [(a, b) for a in SHAPES for b in SHAPES if max(a / b, b / a) < 1.7 and (a, b) != (1, 1)]
SHIFTS = (-0.5, -0.25, -0.1, 0, 0.1, 0.25, 0.5)
COARSE = [(m, s) for s in (0.3, 0.45, 0.6, 0.75, 0.88, 1, 1.15, 1.4, 1.8) for m in SHIFTS if (m, s) != (0, 1)]


@torch.no_grad()
def transforms(path: Path) -> Iterator[tuple[str, Array]]:
    """PIT values of the mixture of the experts, and with their innovation models; rows with a target."""
    with np.load(path) as file:
        mean, variance, log_weights = (torch.as_tensor(file[k]).double() for k in ("mean", "variance", "log_weights"))
        y = torch.as_tensor(file["y"]).double()
    plain = (log_weights.softmax(0) * normal.cdf((y - mean) / variance.sqrt())).sum(0)
    bank, rule = InnovationBank(INNOVATIONS), default_rule()
    innovations, meta, found = bank.init(mean.shape[0], mean), None, []
    for m, v, t in zip(mean.split(BLOCK, 1), variance.split(BLOCK, 1), y.split(BLOCK), strict=True):
        missing = t.isnan()
        innovations, copies = bank.update_block(innovations, m, v, t, missing=missing)
        own = (m, v, normal.log_prob(t, m, v), torch.full_like(m, torch.inf))
        center, spread, log_prob, df = (
            torch.cat([mine.unsqueeze(1), copy], 1).flatten(0, 1) for mine, copy in zip(own, copies, strict=True)
        )
        meta = rule.init(center.shape[0], m) if meta is None else meta
        meta, output = rule.update_block(meta, log_prob.masked_fill(missing, 0.0))
        scale = (spread * torch.where(df.isinf(), 1.0, (df - 2) / df)).sqrt()
        found.append((output.log_weights.softmax(0) * student_t.cdf((t - center) / scale, df)).sum(0))
    for name, u in (("experts", plain), ("with innovations", torch.cat(found))):
        yield name, u[~y.isnan()].numpy()


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


def ours(u: Array) -> tuple[Array, Array]:
    """Gains of the library's recalibration, and the PIT values after it."""
    pit = torch.as_tensor(u)
    _, log_weights = update_recalibration(init_recalibration(pit), pit)
    maps = (log_weights, *map_components(pit))
    return normal_scores.log_density(pit, *maps).numpy(), normal_scores.transform(pit, *maps).numpy()


GAINS: dict[str, Callable[[Array], Array]] = {
    "Beta, shares .002": lambda u: two_shares(beta_ratios(u)),
    "Beta, share .01": lambda u: two_shares(beta_ratios(u), 0.01),
    "normal scores, share .002": lambda u: two_shares(normal_ratios(u)),
    "normal scores, share .05": lambda u: two_shares(normal_ratios(u), 0.05),
    "library": lambda u: ours(u)[0],
}


def fixed(u: Array, alpha: float) -> tuple[Array, Array]:
    """The central interval."""
    return np.full_like(u, alpha / 2), np.full_like(u, 1 - alpha / 2)


def adaptive(rate: float) -> Callable[[Array, float], tuple[Array, Array]]:
    """Adaptive conformal inference (Gibbs and Candes 2021)."""

    def run(u: Array, alpha: float) -> tuple[Array, Array]:
        level, levels = alpha, np.empty_like(u)
        for t, value in enumerate(u):
            levels[t] = max(level, 0.0)
            level += rate * (alpha - (not levels[t] / 2 < value < 1 - levels[t] / 2))
        return levels / 2, 1 - levels / 2

    return run


def many_rates(u: Array, alpha: float) -> tuple[Array, Array]:
    """DtACI (Gibbs and Candes 2024): several rates, weighed by their pinball losses; their mean level."""
    rates, horizon = np.array([0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128]), 500
    num = len(rates)
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


def tracked(u: Array, alpha: float) -> tuple[Array, Array]:
    """The library's levels."""
    pit, levels = torch.as_tensor(u), IntervalLevels((1 - alpha,))
    found = levels.update_block(levels.init(pit), pit)[1].levels[:, 0].numpy()
    return found[0], found[1]


LEVELS: dict[str, Callable[[Array, float], tuple[Array, Array]]] = {
    "central": fixed,
    "ACI .005": adaptive(0.005),
    "ACI .01": adaptive(0.01),
    "DtACI": many_rates,
    "library": tracked,
}


def kept(u: Array, lower: Array, upper: Array, alpha: float) -> tuple[float, float, float, float]:
    """Coverage, share of windows of 500 within half a miss rate of it, width against the central one, infinite ends."""
    hits = ((lower < u) & (u < upper)).astype(float)
    windows = np.convolve(hits, np.ones(500) / 500, "valid") if len(u) >= 500 else np.array([hits.mean()])
    width = (np.minimum(ndtri(upper), 6) - np.maximum(ndtri(lower), -6)) / (-2 * ndtri(alpha / 2))
    near = np.abs(windows - 1 + alpha) <= alpha / 2 + 1e-9
    infinite = (lower <= 0) | (upper >= 1)
    return float(hits.mean()), float(near.mean()), float(width.mean()), float(infinite.mean())


def row(name: str, cells: Iterable[object]) -> str:
    """A line of a table."""
    return f"| {name} | " + " | ".join(f"{c:.4f}" if isinstance(c, float) else str(c) for c in cells) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="files of stored predictions")
    folder = parser.parse_args(arguments).folder
    torch.set_num_threads(1)
    sequences = {(path.stem, kind): u for path in sorted(folder.glob("*.npz")) for kind, u in transforms(path)}
    rng = np.random.default_rng(0)
    for number in range(5):
        sequences[f"uniform {number}", "nothing wrong"] = rng.random(2000)
    kinds = list(dict.fromkeys(kind for _, kind in sequences))
    print(row("gain, nats per row", GAINS))
    for kind in kinds:
        gains = np.array([[f(u).mean() for f in GAINS.values()] for (_, k), u in sequences.items() if k == kind])
        print(row(f"{kind}, mean", map(float, gains.mean(0))))
        print(row(f"{kind}, worst", map(float, gains.min(0))))
    for alpha in (0.5, 0.1, 0.02):
        print(row(f"coverage {1 - alpha:g}", ("sets within", "worst", "windows", "width", "infinite")))
        for kind in kinds:
            of_kind = [u for (_, k), u in sequences.items() if k == kind]
            for recalibrated in (False, True):
                values = [ours(u)[1] if recalibrated else u for u in of_kind]
                for name, rule in LEVELS.items():
                    found = np.array([kept(u, *rule(u, alpha), alpha) for u in values])
                    off = np.abs(found[:, 0] - 1 + alpha)
                    within = f"{int((off <= alpha / 10).sum())}/{len(off)}"
                    label = f"{kind}{', recalibrated' * recalibrated}: {name}"
                    print(row(label, (within, float(off.max()), *map(float, found[:, 1:].mean(0)))))


if __name__ == "__main__":
    main()
