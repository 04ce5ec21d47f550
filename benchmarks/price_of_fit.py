"""What the start costs: a fit beside streaming as many rows, and empirical Bayes beside the papers' gradient steps.

    python -m benchmarks.price_of_fit

CPU times of one thread. The papers take 500 steps of Adam; 25 of them are timed, for each costs the same.
"""

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from benchmarks.price_of_block import Ratio
from benchmarks.price_of_row import WARMUP, seconds, stream
from gp_ensembles.ensembles.presets import PRESETS, auto
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.experts.empirical_bayes import LBFGS, Adam, fit_empirical_bayes
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.features.stacking import stack_kernels
from gp_ensembles.streaming import OnlineModel, StreamConfig

NUM_EXPERTS, NUM_FEATURES, NUM_STEPS, NUM_TIMED = 15, 100, 500, 25


def start_of(name: str) -> float:
    """The fit of a preset to a thousand rows over streaming the next thousand in one call."""
    X, y = stream(2 * WARMUP)
    model = OnlineModel(StreamConfig(PRESETS[name], warmup=WARMUP))
    fitting = min(seconds(lambda: model.fit(X[:WARMUP], y[:WARMUP])) for _ in range(2))
    return fitting / seconds(lambda: model.observe(X[WARMUP:], y[WARMUP:]))


def experts() -> GaussianExpert:
    """Experts on random features of ten inputs, each with a length scale for each input."""
    kernels = [ScaleKernel(RBFKernel(ard_num_dims=10)).double() for _ in range(NUM_EXPERTS)]
    for number, kernel in enumerate(kernels):
        kernel.base_kernel.lengthscale = 2.0 + 0.3 * number
    generator = torch.Generator().manual_seed(0)
    return GaussianExpert(
        RandomFourierFeatures.from_kernel(stack_kernels(kernels), 10, NUM_FEATURES, generator=generator)
    )


def empirical_bayes() -> tuple[float, float]:
    """Ours over the papers' in time, and the nats that ours is ahead by on average."""
    X, y = stream(WARMUP)
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    ours, theirs, steps = experts(), experts(), Adam(num_steps=NUM_TIMED)
    method = auto.fit_settings.method
    assert isinstance(method, LBFGS)
    took = seconds(lambda: fit_empirical_bayes(ours, X, y, method))
    a_step = seconds(lambda: fit_empirical_bayes(theirs, X, y, steps)) / NUM_TIMED
    ahead = ours.log_evidence(X, y) - theirs.log_evidence(X, y)
    return took / (NUM_STEPS * a_step), float(ahead.detach().mean())


def ratios() -> list[Ratio]:
    """The table's rows."""
    torch.set_num_threads(1)
    ours, _ = empirical_bayes()
    return [
        ("auto: the fit to 1 000 rows over streaming 1 000", start_of("auto"), 5.0),
        ("light: the fit to 1 000 rows over streaming 1 000", start_of("light"), None),
        (f"M={NUM_EXPERTS}, F={NUM_FEATURES}: empirical Bayes over {NUM_STEPS} steps of Adam", ours, 0.1),
    ]


if __name__ == "__main__":
    for what, ratio, most in ratios():
        print(f"{ratio:8.3f} {'' if most is None else f'(at most {most:.2f})':16s} {what}")
    ours, ahead = empirical_bayes()
    print(f"{ahead:8.1f} nats that empirical Bayes is ahead of {NUM_TIMED} steps of Adam by, an expert")
