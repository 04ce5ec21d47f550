r"""The variational sparse spectrum of Gal and Turner (2015), a rival in the paper: a distribution over frequencies.

The function is :math:`f(x) = \sum_k a_k^\top \varphi_k(x)`, where feature k is the cosine and the sine of
:math:`2 \pi \omega_k \cdot (x - z_k)` times the root of the output scale over K, and both coefficients are standard
normal. Frequencies are normal a priori, as those of a squared exponential kernel, and independently normal under the
variational posterior; places z are parameters. Expectations of cosines under normal frequencies are closed, and so is
the best posterior of the coefficients, so the bound has no noise. Cosine and sine of one frequency stand for the
paper's random phases, which they integrate out.
"""

import math
from typing import NamedTuple

import torch
from botorch.optim.closures import ForwardBackwardClosure
from botorch.optim.core import scipy_minimize
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

_START_SHARE = 0.05  # deviation of a frequency to start from, as a share of the prior's: nearly a point


class VariationalSpectrum(NamedTuple):
    """Parameters of prior and variational posterior; frequencies are in cycles per unit of the input.

    Attributes:
        mean: Posterior means of the frequencies, shape (K, D).
        log_sd: Logarithms of their posterior standard deviations, shape (K, D).
        places: Places z at which features are not damped, shape (K, D).
        log_lengthscale: Logarithms of the kernel's length scales, shape (D,).
        log_outputscale: Logarithm of the function's variance, shape ().
        log_noise: Logarithm of the noise variance, shape ().

    Example:
        >>> X = torch.linspace(0, 1, 20, dtype=torch.float64, device="cpu").unsqueeze(-1)
        >>> start = start_spectrum(X, 4, 0.3, torch.Generator().manual_seed(0))
        >>> before, after = (float(s.bound(X, X[:, 0].cos())) for s in (start, fit(start, X, X[:, 0].cos(), 50)[0]))
        >>> before < after
        True
    """

    mean: Tensor
    log_sd: Tensor
    places: Tensor
    log_lengthscale: Tensor
    log_outputscale: Tensor
    log_noise: Tensor

    @property
    def _prior_log_sd(self) -> Tensor:
        """Logarithms of the prior deviations of the frequencies, 1 / (2 pi length scale), shape (D,)."""
        value: Tensor = -self.log_lengthscale - math.log(2.0 * math.pi)
        return value

    @property
    def _feature_variance(self) -> Tensor:
        return self.log_outputscale.exp() / len(self.mean)

    def divergence(self) -> Tensor:
        """Kullback-Leibler divergence of the frequencies' posterior from their prior, shape ()."""
        ratio = self.log_sd - self._prior_log_sd
        square = (self.mean * (-self._prior_log_sd).exp()).square()
        return 0.5 * ((2.0 * ratio).exp() + square - 1.0 - 2.0 * ratio).sum()

    def bound(self, X: Tensor, y: Tensor) -> Tensor:
        r"""Lower bound of the log evidence, the coefficients' posterior being the best there is, shape ().

        .. math:: \log \int e^{E_\omega \log N(y; \Phi a, \sigma^2 I)} N(a; 0, I) \, da - KL(q(\omega), p(\omega))
        """
        noise = self.log_noise.exp()
        features, gram = self._expected(X)
        factor = torch.linalg.cholesky(gram + noise * torch.eye(len(gram), dtype=gram.dtype, device=gram.device))
        solved = torch.linalg.solve_triangular(factor, (features.mT @ y).unsqueeze(-1), upper=False)
        square = (y.square().sum() - solved.square().sum()) / noise
        log_determinant = 2.0 * factor.diagonal().log().sum() + (len(y) - len(gram)) * self.log_noise
        value: Tensor = -0.5 * (square + log_determinant + len(y) * math.log(2.0 * math.pi)) - self.divergence()
        return value

    def predict(self, X: Tensor, y: Tensor, test_X: Tensor) -> MultivariateNormal:
        """The normal distribution with the moments of the M test targets, noise included."""
        noise = self.log_noise.exp()
        features, gram = self._expected(X)
        factor = torch.linalg.cholesky(gram + noise * torch.eye(len(gram), dtype=gram.dtype, device=gram.device))
        coefficients = torch.cholesky_solve((features.mT @ y).unsqueeze(-1), factor).squeeze(-1)
        covariance = noise * torch.cholesky_inverse(factor)
        mine, size = self._waves(test_X), len(self.mean)
        at_test = self._feature_variance.sqrt() * torch.cat(mine, -1)
        joint = at_test @ covariance @ at_test.mT
        square = covariance + coefficients.outer(coefficients)
        for k in range(size):  # what the frequencies are not known
            here = test_X - self.places[k]
            cosine, sine = self._pair(k, here.unsqueeze(0) - here.unsqueeze(1))
            cosine2, sine2 = self._pair(k, here.unsqueeze(0) + here.unsqueeze(1))
            c, s = mine[0][:, k], mine[1][:, k]
            cc, ss = 0.5 * (cosine + cosine2) - c.outer(c), 0.5 * (cosine - cosine2) - s.outer(s)
            cs = 0.5 * (sine2 + sine) - c.outer(s)  # row of the cosine, column of the sine
            block = square[k::size, k::size]
            joint = joint + self._feature_variance * (block[0, 0] * cc + block[1, 1] * ss + block[0, 1] * (cs + cs.mT))
        joint = 0.5 * (joint + joint.mT) + noise * torch.eye(len(test_X), dtype=joint.dtype, device=joint.device)
        return MultivariateNormal(at_test @ coefficients, joint)

    def _expected(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Expectations of the features (N, 2K), cosines first, and of their Gram matrix (2K, 2K)."""
        cosine, sine = self._waves(X)
        cosine2, sine2 = self._waves(X, 2.0)
        features = torch.cat([cosine, sine], -1)
        # features of different frequencies are independent, those of one are not
        cc = (0.5 * (1.0 + cosine2) - cosine.square()).sum(0).diag_embed()
        ss = (0.5 * (1.0 - cosine2) - sine.square()).sum(0).diag_embed()
        cs = (0.5 * sine2 - cosine * sine).sum(0).diag_embed()
        gram = features.mT @ features + torch.cat([torch.cat([cc, cs], -1), torch.cat([cs, ss], -1)])
        return self._feature_variance.sqrt() * features, self._feature_variance * gram

    def _waves(self, X: Tensor, multiple: float = 1.0) -> tuple[Tensor, Tensor]:
        """Expected cosines and sines of a multiple of the phases at rows (N, D), each (N, K)."""
        lags = multiple * (X.unsqueeze(-2) - self.places)
        phase = 2.0 * math.pi * (lags * self.mean).sum(-1)
        decay = (-2.0 * math.pi**2 * (lags * self.log_sd.exp()).square().sum(-1)).exp()
        return decay * phase.cos(), decay * phase.sin()

    def _pair(self, k: int, lags: Tensor) -> tuple[Tensor, Tensor]:
        """Expected cosine and sine of frequency k at lags (M, M, D), each (M, M)."""
        phase = 2.0 * math.pi * lags @ self.mean[k]
        decay = (-2.0 * math.pi**2 * (lags * self.log_sd[k].exp()).square().sum(-1)).exp()
        return decay * phase.cos(), decay * phase.sin()


def start_spectrum(X: Tensor, num_frequencies: int, share: float, generator: torch.Generator) -> VariationalSpectrum:
    """Parameters to start from: frequencies drawn from the prior and nearly points, places among the rows.

    Args:
        X: Inputs, shape (N, D).
        num_frequencies: K.
        share: Length scales, as shares of each input's range.
        generator: Source of randomness.
    """
    log_lengthscale = (share * (X.amax(0) - X.amin(0))).log()
    prior_sd = (-log_lengthscale).exp() / (2.0 * math.pi)
    normals = torch.randn(num_frequencies, X.shape[1], generator=generator, dtype=torch.float64, device="cpu").to(X)
    rows = torch.randint(len(X), (num_frequencies,), generator=generator, device="cpu")
    log_sd = (_START_SHARE * prior_sd).log().expand_as(normals).clone()
    zero = X.new_zeros(())
    return VariationalSpectrum(
        prior_sd * normals, log_sd, X[rows].clone(), log_lengthscale, zero, zero + math.log(0.01)
    )


def fit(start: VariationalSpectrum, X: Tensor, y: Tensor, evaluations: int) -> tuple[VariationalSpectrum, int]:
    """The parameters that L-BFGS finds to have the highest bound, and how many bounds it took.

    Args:
        start: Parameters to start from.
        X: Inputs, shape (N, D).
        y: Targets of mean zero, shape (N,).
        evaluations: Bounds with gradients after which it stops; a line search that has begun is finished.
    """
    parameters = {name: value.clone().requires_grad_() for name, value in start._asdict().items()}
    spectrum = VariationalSpectrum(**parameters)
    count = 0

    def objective() -> Tensor:
        nonlocal count
        count += 1
        return -spectrum.bound(X, y)

    options = {"maxiter": evaluations, "maxfun": evaluations}
    scipy_minimize(ForwardBackwardClosure(objective, parameters), parameters, options=options)
    return VariationalSpectrum(*(value.detach() for value in spectrum)), count
