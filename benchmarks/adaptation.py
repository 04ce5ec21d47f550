"""What adaptation buys under drift, and what the robust expert saves under gross outliers.

OMP_NUM_THREADS=1 python benchmarks/adaptation.py --data ../shared/data [--seeds 2] [--tables drift outliers]
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from gp_ensembles.data import load_folder
from gp_ensembles.ensembles.bases import FourierBasis
from gp_ensembles.ensembles.build import dynamic_group
from gp_ensembles.experts import Expert, GaussianExpert, RobustExpert, fit_empirical_bayes
from gp_ensembles.filters import CorrelatedWalk, ExponentialForgetting, StabilizedForgetting
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.streaming import Standardizer, constant_columns

WARMUP, ROWS = 1000, 8000
Kind = type[GaussianExpert] | type[RobustExpert]
KINDS: tuple[Kind, ...] = (GaussianExpert, RobustExpert)


def stream(folder: Path, name: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets standardized by the warm-up rows, inputs clipped at 1000 deviations."""
    table = load_folder(folder, name)
    keep = [column for column in range(table.X.shape[1]) if column not in constant_columns(table.X[:WARMUP])]
    X, y = table.X[:ROWS, keep], table.y[:ROWS]
    X, y = Standardizer.fit(X[:WARMUP], y[:WARMUP]).transform(X, y)
    return X.clamp(-1e3, 1e3), y


def drifting() -> tuple[Tensor, Tensor]:
    """A function whose phase drifts by a turn in 4 000 rows."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(ROWS, 2, generator=g, dtype=torch.float64)
    phase = torch.linspace(0, 4 * torch.pi, ROWS, dtype=torch.float64)
    return X, torch.sin(2 * X[:, 0] + phase) + X[:, 1] + 0.2 * torch.randn(ROWS, generator=g, dtype=torch.float64)


def fitted(kind: Kind, X: Tensor, y: Tensor, seed: int = 0) -> Expert:
    features = FourierBasis(starts=(0.7,)).build(X[:WARMUP], generator=torch.Generator().manual_seed(seed))[0][1]
    expert = kind(features)
    fit_empirical_bayes(expert, X[:WARMUP], y[:WARMUP], start_precision=0.5)
    return expert


@torch.no_grad()
def run(expert: Expert, X: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """One-step-ahead means after the warm-up, and the mean log density of the targets."""
    state, means, total = expert.init(), [], 0.0
    for start in range(0, X.shape[0], 24):
        rows = slice(start, start + 24)
        state, steps = expert.update(state, X[rows], y[rows])
        keep = steps.mean[0] if steps.mean.ndim == 2 else steps.mean
        means.append(keep)
        total += float(steps.log_prob.nansum()) if start >= WARMUP else 0.0
    return torch.cat(means)[WARMUP:], total / (X.shape[0] - WARMUP)


def drift_table(folder: Path) -> None:
    print("| stream | " + " | ".join(("static", *_names())) + " |")
    print("|---|" + "---|" * (1 + len(_names())))
    for name in ("barrett_wam", "sml_ordered", "synthetic drift"):
        X, y = drifting() if name == "synthetic drift" else stream(folder, name)
        base = fitted(GaussianExpert, X, y)
        cells = [run(base, X, y)[1]]
        walk = dynamic_group([("x", base)], X[:WARMUP], [1e-3])[0][1]
        cells.append(run(walk, X, y)[1])
        features = base.features.bind()(X[:WARMUP]).detach().reshape(WARMUP, -1)
        scatter = features.mT @ features / WARMUP
        unit = scatter / scatter.diagonal().sum()  # steps where the features move most, as large in all
        change: Transition = CorrelatedWalk(1e-3 * unit * features.shape[1])
        cells.append(run(base.with_transition(change), X, y)[1])
        cells += [run(base.with_transition(ExponentialForgetting(f)), X, y)[1] for f in (0.999, 0.99)]
        cells += [run(base.with_transition(StabilizedForgetting(f)), X, y)[1] for f in (0.999, 0.99)]
        print(f"| {name} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |", flush=True)


def _names() -> tuple[str, ...]:
    return (
        "random walk 1e-3", "correlated walk 1e-3", "forgetting 0.999", "forgetting 0.99",
        "stabilized 0.999", "stabilized 0.99",
    )  # fmt: skip


BEGINNINGS = ("after the warm-up", "in the warm-up", "before the scales are set")


def contaminated(clean: Tensor, beginning: str, seed: int) -> tuple[Tensor, Tensor]:
    """Targets of which one in twenty is moved by 20 deviations times a normal draw, and the clean ones on their scale.

    Scales of a stream are those of its clean warm-up rows, except where outliers come before they are set.
    """
    g = torch.Generator().manual_seed(seed)
    dirty = clean.clone()
    hit = torch.rand(clean.shape[0], generator=g) < 0.05
    if beginning == "after the warm-up":
        hit[:WARMUP] = False
    dirty[hit] += 20 * torch.randn(int(hit.sum()), generator=g, dtype=torch.float64)
    if beginning == "before the scales are set":
        deviation, mean = torch.std_mean(dirty[:WARMUP])
        return (dirty - mean) / deviation, (clean - mean) / deviation
    return dirty, clean


def relative_error(expert: Expert, X: Tensor, y: Tensor, clean: Tensor) -> float:
    """Mean squared error of an expert that sees y over the variance of the clean targets."""
    target = clean[WARMUP:]
    return float((run(expert, X, y)[0] - target).square().mean() / target.var())


def outlier_table(folder: Path, seeds: int) -> None:
    columns = ("Gaussian, clean", "Gaussian, outliers", "robust, clean", "robust, outliers", "loss kept")
    print("\n| stream | outliers begin | " + " | ".join(columns) + " |")
    print("|---|---|" + "---:|" * len(columns))
    for name in ("elevators", "cpusmall", "kin8nm"):
        X, original = stream(folder, name)
        for beginning in BEGINNINGS:
            errors = torch.zeros(seeds, 4, dtype=torch.float64)
            for seed in range(seeds):
                dirty, clean = contaminated(original, beginning, seed)
                for k, kind in enumerate(KINDS):
                    expert = fitted(kind, X, clean, seed)
                    errors[seed, 2 * k] = relative_error(expert, X, clean, clean)
                    expert = expert if beginning == "after the warm-up" else fitted(kind, X, dirty, seed)
                    errors[seed, 2 * k + 1] = relative_error(expert, X, dirty, clean)
            cells = errors.mean(0).tolist()
            kept = (cells[3] - cells[2]) / (cells[1] - cells[0])
            shown = " | ".join(f"{cell:.4f}" for cell in cells)
            print(f"| {name} | {beginning} | {shown} | {100 * kept:.1f} % |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2, help="draws of features and outliers")
    parser.add_argument("--tables", nargs="*", choices=("drift", "outliers"), default=("drift", "outliers"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if "drift" in arguments.tables:
        drift_table(arguments.data)
    if "outliers" in arguments.tables:
        outlier_table(arguments.data, arguments.seeds)


if __name__ == "__main__":
    main()
