"""Cost and memory of a long stream, and the latency of one row at a time; one thread."""

import resource
import time

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles.ensembles import Ensemble, OnlineEnsemble
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.features.stacking import stack_kernels
from gp_ensembles.filters import RandomWalk
from gp_ensembles.meta_learners import BayesianModelAveraging, MarkovSwitching, sticky_transition


def ensemble(num_experts: int, num_features: int, num_inputs: int, switching: bool, dynamic: bool) -> OnlineEnsemble:
    kernels = []
    for m in range(num_experts):
        kernel = ScaleKernel(RBFKernel(ard_num_dims=num_inputs)).double()
        kernel.base_kernel.lengthscale = 0.5 * 1.3**m
        kernels.append(kernel)
    features = RandomFourierFeatures.from_kernel(
        stack_kernels(kernels), num_inputs, num_features, generator=torch.Generator().manual_seed(0)
    )
    expert = GaussianExpert(features, transition=RandomWalk(1e-4) if dynamic else None)
    rule = MarkovSwitching(sticky_transition(num_experts, 0.99)) if switching else BayesianModelAveraging()
    return OnlineEnsemble(Ensemble([expert], rule))


def table(num_rows: int, num_inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(num_rows, num_inputs, generator=generator, dtype=torch.float64)
    y = torch.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.2 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    return X, y


def flatness() -> None:
    X, y = table(100_000, 8)
    online = ensemble(15, 100, 8, switching=True, dynamic=True)
    times = []
    memory = []
    for rows, targets in zip(X.split(1000), y.split(1000), strict=True):
        start = time.perf_counter()
        online.observe(rows, targets)
        times.append(time.perf_counter() - start)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    first, last = 1e3 * times[0], 1e3 * times[-1]
    early, late = sorted(times[:10])[5], sorted(times[-10:])[5]
    print(
        f"100 000 rows, M=15, F=100, dynamic, switching: first 1000 rows {first:.1f} ms, last {last:.1f} ms; medians "
        f"of the first and last ten thousands {1e3 * early:.1f} and {1e3 * late:.1f} ms, ratio {late / early:.2f}; "
        f"peak memory after 10 000 rows {memory[9]:.0f} MB, after 100 000 {memory[-1]:.0f} MB"
    )


def latency() -> None:
    X, y = table(12_000, 8)
    for switching in (False, True):
        for dynamic in (False, True):
            online = ensemble(12, 100, 8, switching, dynamic)
            times = []
            for t in range(len(y)):
                row, target = X[t : t + 1], y[t : t + 1]
                start = time.perf_counter()
                online.observe(row, target)
                times.append(time.perf_counter() - start)
            times = sorted(times[1000:])
            print(
                f"one row at a time, M=12, F=100, {'switching' if switching else 'averaging'}, "
                f"{'dynamic' if dynamic else 'static'}: median {1e6 * times[len(times) // 2]:.0f} µs, "
                f"99th percentile {1e6 * times[int(0.99 * len(times))]:.0f} µs"
            )


def main() -> None:
    torch.set_num_threads(1)
    latency()
    flatness()


if __name__ == "__main__":
    main()
