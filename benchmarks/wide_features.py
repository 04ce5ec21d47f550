"""Wide random features beside a window's exact Gaussian process: which kernel, how many features, which noises.

    python -m benchmarks.wide_features --data FOLDER --sets kin8nm,pol --rows 7000

The first 1 000 rows fit everything; of the next ones each expert's density is taken before it learns the row. Scores
are those of the default rule on the experts named and their innovation models, in nats a row, higher is better: the
features by themselves, and beside a window of 1 000 rows. Microseconds are of one expert in blocks of 64 rows.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.bench_row import load
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.further import FurtherExpert, WarmUp
from gp_ensembles.ensembles.presets import INNOVATIONS, default_rule
from gp_ensembles.ensembles.runners import make_runner
from gp_ensembles.ensembles.wide import WideFeatures
from gp_ensembles.ensembles.windows import WindowGP
from gp_ensembles.innovations import InnovationBank
from gp_ensembles.streaming import Standardizer
from gp_ensembles.streaming.input_range import InputRange
from gp_ensembles.streaming.scales import constant_columns

BLOCK, WARM = 64, 1000
KERNELS = {"Matern-3/2": 1.5, "Matern-5/2": 2.5, "RBF": math.inf}
NOISES = (0.003, 0.03, 0.1)


def rows(folder: Path, name: str, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Warm-up and later rows, standardized."""
    X, y = (part[: WARM + most] for part in load(folder, name))
    constant = set(constant_columns(X[:WARM]))
    X = X[:, [column for column in range(X.shape[1]) if column not in constant]]
    scales = Standardizer.fit(X[:WARM], y[:WARM], [str(column) for column in range(X.shape[1])])
    X, y = scales.transform_inputs(X).nan_to_num(0.0), (y - scales.y_mean) / scales.y_scale
    return X[:WARM], y[:WARM], InputRange.of(X[:WARM]).follow(X[WARM:])[1], y[WARM:]


@torch.no_grad()
def densities(record: FurtherExpert, warm: WarmUp, X: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """Log densities of the experts of a record with their innovation models, (M, 1 + K, N), and microseconds a row."""
    ((_, expert),) = torch.enable_grad()(record.build)(warm)
    bound = expert.bind()
    state = type(start := expert.init())(*(part.clone() for part in start))
    runner, bank, parts = make_runner(bound, state), InnovationBank(INNOVATIONS), []
    for inputs, targets in ((warm.X, warm.y), (X, y)):
        steps, started = [], time.perf_counter()
        for i in range(0, len(targets), BLOCK):
            block = targets[i : i + BLOCK]
            steps.append(runner.stage(bound.features(inputs[i : i + BLOCK]), block, bool(block.isnan().any())))
            runner.commit()
        spent = time.perf_counter() - started
    mean, variance, own = (torch.cat([getattr(s, f) for s in steps], 1) for f in ("mean", "variance", "log_prob"))
    learned, missing = bank.init(len(mean), mean), y.isnan()
    for cut in torch.arange(len(y)).split(BLOCK):
        learned, copies = bank.update_block(learned, mean[:, cut], variance[:, cut], y[cut], missing=missing[cut])
        parts.append(copies.log_prob)
    log_prob = torch.cat([own.unsqueeze(1), torch.cat(parts, -1)], 1)[..., ~missing]
    return log_prob, 1e6 * spent / len(y) / len(mean)


@torch.no_grad()
def score(*parts: Tensor) -> float:
    """Mean log score of the default rule on experts with their innovation models."""
    log_prob, rule = torch.cat(parts).flatten(0, 1), default_rule()
    state, total = rule.init(len(log_prob), log_prob), 0.0
    for block in log_prob.split(BLOCK, 1):
        state, output = rule.update_block(state, block)
        total += float(output.log_prob.sum())
    return total / log_prob.shape[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default="kin8nm,pol,elevators,cadata,cpusmall,sarcos_thin10")
    parser.add_argument("--features", type=int, nargs="+", default=[500, 1000])
    parser.add_argument("--rows", type=int, default=7000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| set | kernel | features | us | .03 | .003, .1 | all | window | + .03 | + .003, .1 | + all |")
    print("|---|---|" + "---:|" * 9)
    for name in options.sets.split(","):
        warm_X, warm_y, X, y = rows(options.data, name, options.rows)
        warm = WarmUp(warm_X, warm_y, warm_X, FitSettings(num_samples=1), torch.Generator().manual_seed(0))
        window, _ = densities(WindowGP(), warm, X, y)
        for kernel, nu in KERNELS.items():
            for number in options.features:
                record = WideFeatures(number, nu=nu, noises=NOISES)
                found, spent = densities(record, warm._replace(generator=torch.Generator().manual_seed(0)), X, y)
                some = found[[1]], found[[0, 2]], found
                alone = " | ".join(f"{score(part):.3f}" for part in some)
                beside = " | ".join(f"{score(window, part):.3f}" for part in some)
                line = f"| {name} | {kernel} | {number} | {spent:.0f} | {alone} | {score(window):.3f} | {beside} |"
                print(line, flush=True)


if __name__ == "__main__":
    main()
