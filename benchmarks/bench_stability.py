"""Single precision on 100 000 nearly collinear rows with tiny noise: which form of the filter survives, one thread."""

import time

import torch
from torch import Tensor

from gp_ensembles.filters import gaussian_state, square_root_state, update_block
from gp_ensembles.filters.states import LinearState
from gp_ensembles.numerics.cholesky import NumericalError


def smooth_stream(num_rows: int, num_features: int, noise: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, 3, generator=generator, dtype=torch.float64)
    frequencies = 0.5 * torch.randn(num_features // 2, 3, generator=generator, dtype=torch.float64)
    angles = X @ frequencies.T
    Phi = torch.cat([angles.sin(), angles.cos()], dim=-1) / (num_features / 2) ** 0.5
    weights = torch.randn(num_features, generator=generator, dtype=torch.float64)
    return Phi, Phi @ weights + noise**0.5 * torch.randn(num_rows, generator=generator, dtype=torch.float64)


def run(state: LinearState, Phi: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, int]:
    means, variances, rows = [], [], 0
    for design, targets in zip(Phi.split(32), y.split(32), strict=True):
        try:
            state, steps = update_block(state, design, targets, None, noise)
        except NumericalError:
            break
        means.append(steps.mean)
        variances.append(steps.variance)
        rows += len(targets)
    return torch.cat(means).double(), torch.cat(variances).double(), rows


def main() -> None:
    torch.set_num_threads(1)
    for noise in (1e-4, 1e-6, 1e-8):
        Phi, y = smooth_stream(100_000, 40, noise)
        prior, sigma2 = (torch.tensor(v, dtype=torch.float64) for v in (50.0, noise))
        reference = run(square_root_state(prior, 40), Phi, y, sigma2)
        print(f"noise {noise:g}, prior variance 50, F=40, against the float64 square root:")
        for dtype in (torch.float64, torch.float32):
            for name, form in (("covariance", gaussian_state), ("square root", square_root_state)):
                start = time.perf_counter()
                parts = run(form(prior.to(dtype), 40), Phi.to(dtype), y.to(dtype), sigma2.to(dtype))
                seconds = time.perf_counter() - start
                mean, variance, rows = parts
                error = float((mean - reference[0][:rows]).abs().max()) / noise**0.5
                ratio = float((variance / reference[1][:rows] - 1).abs().max())
                end = "all rows" if rows == len(y) else f"dead after {rows} rows"
                print(
                    f"  {str(dtype)[6:]} {name:11s} {end:22s} largest error of a mean {error:9.2g} deviations of the "
                    f"noise, of a variance {ratio:9.2g} relative, {seconds:.1f} s"
                )


if __name__ == "__main__":
    main()
