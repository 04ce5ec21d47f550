"""Empirical Bayes of 15 random Fourier experts (F = 100, 1000 rows): L-BFGS against 500 Adam steps, one thread."""

import time

import torch

from gp_ensembles.ensembles.bases import FourierBasis
from gp_ensembles.experts import LBFGS, Adam, GaussianExpert, fit_empirical_bayes


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(1000, 17, generator=generator, dtype=torch.float64)
    y = torch.sin(X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.3 * torch.randn(1000, generator=generator, dtype=torch.float64)
    y = (y - y.mean()) / y.std(correction=0)
    starts = (0.2, 0.7, 2.0) * 5
    reached = {}
    for method in (LBFGS(), Adam()):
        basis = FourierBasis(num_features=100, starts=starts)
        (_, features), *_ = basis.build(X, generator=torch.Generator().manual_seed(1))
        expert = GaussianExpert(features)
        start = time.perf_counter()
        fit = fit_empirical_bayes(expert, X, y, method)
        reached[type(method).__name__] = fit.log_evidence
        print(
            f"{method}: {time.perf_counter() - start:.1f} s, mean log evidence {float(fit.log_evidence.mean()):.1f}, "
            f"worst {float(fit.log_evidence.min()):.1f}, converged {int(fit.converged.sum())} of 15"
        )
    gain = reached["LBFGS"] - reached["Adam"]
    print(f"L-BFGS above Adam by {float(gain.mean()):.2f} nats on average, by {float(gain.min()):.2f} at the worst")


if __name__ == "__main__":
    main()
