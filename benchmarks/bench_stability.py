"""Single precision on 100 000 nearly collinear rows with tiny noise: which form of the filter survives, one thread.

Products of TF32, as a GPU's tensor cores have them (factors rounded to ten bits behind the point, sums in single
precision), and of 3xTF32 (each factor as a sum of two such numbers, three of the four products) are imitated: this
tells how safe they are, and nothing about their speed.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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
    none = y.new_zeros(0)
    return torch.cat([none, *means]).double(), torch.cat([none, *variances]).double(), rows


def tf32(values: Tensor) -> Tensor:
    """Single-precision numbers rounded to the ten bits behind the point that tensor cores read."""
    return ((values.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def rounded_once(left: Tensor, right: Tensor) -> Tensor:
    """A product in TF32."""
    return torch.bmm(tf32(left), tf32(right))


def rounded_thrice(left: Tensor, right: Tensor) -> Tensor:
    """A product in 3xTF32."""
    parts = [(tf32(value), tf32(value - tf32(value))) for value in (left, right)]
    (high, low), (other_high, other_low) = parts
    return torch.bmm(high, other_low) + torch.bmm(low, other_high) + torch.bmm(high, other_high)


class Products(TorchDispatchMode):
    """Matrix products of single-precision numbers in another way."""

    def __init__(self, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self._product, self.num_products = product, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        if name in ("mm", "bmm", "mv") and args[0].dtype == torch.float32:
            self.num_products += 1
            left = args[0] if name == "bmm" else args[0].unsqueeze(0)
            right = {"bmm": args[1], "mm": args[1].unsqueeze(0), "mv": args[1].unsqueeze(-1).unsqueeze(0)}[name]
            product = self._product(left, right)
            return {"bmm": product, "mm": product.squeeze(0), "mv": product.reshape(-1)}[name]
        assert name not in ("addmm", "baddbmm", "addmv", "dot"), f"{name} is not imitated"
        return func(*args, **(kwargs or {}))


def main() -> None:
    torch.set_num_threads(1)
    for noise in (1e-4, 1e-6, 1e-8):
        Phi, y = smooth_stream(100_000, 40, noise)
        prior, sigma2 = (torch.tensor(v, dtype=torch.float64) for v in (50.0, noise))
        reference = run(square_root_state(prior, 40), Phi, y, sigma2)
        print(f"noise {noise:g}, prior variance 50, F=40, against the float64 square root:")
        ways = [(torch.float64, "float64", None), (torch.float32, "float32", None)]
        ways += [(torch.float32, "3xTF32", rounded_thrice), (torch.float32, "TF32", rounded_once)]
        for dtype, digits, product in ways:
            for name, form in (("covariance", gaussian_state), ("square root", square_root_state)):
                start = time.perf_counter()
                with nullcontext() if product is None else Products(product) as mode:
                    parts = run(form(prior.to(dtype), 40), Phi.to(dtype), y.to(dtype), sigma2.to(dtype))
                assert mode is None or mode.num_products > 0
                seconds = time.perf_counter() - start
                mean, variance, rows = parts
                if rows == 0:
                    print(f"  {digits:8s} {name:11s} dead in the first block")
                    continue
                error = float((mean - reference[0][:rows]).abs().max()) / noise**0.5
                ratio = float((variance / reference[1][:rows] - 1).abs().max())
                end = "all rows" if rows == len(y) else f"dead after {rows} rows"
                print(
                    f"  {digits:8s} {name:11s} {end:22s} largest error of a mean {error:9.2g} deviations of the "
                    f"noise, of a variance {ratio:9.2g} relative, {seconds:.1f} s"
                )


if __name__ == "__main__":
    main()
