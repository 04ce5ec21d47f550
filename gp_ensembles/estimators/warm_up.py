"""What both doors share: rows are kept until there are enough to fit to, then streamed."""

import torch
from torch import Tensor

from gp_ensembles.data.protocol import Standardizer, constant_columns
from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.ensembles.spec import EnsembleSpec


class WarmUpEnsemble:
    """An ensemble that is fitted once enough targets have come, in the units of the user's table.

    Until then it predicts the running mean of the targets with their running variance. Columns that are constant in
    the warm-up rows are left out for good.

    Args:
        spec: What the ensemble is made of.
        num_warmup: Targets to wait for, at least 10.
        seed: Seed of the generator.
    """

    def __init__(self, spec: EnsembleSpec, num_warmup: int, seed: int) -> None:
        if num_warmup < 10:
            raise ValueError(f"a warm-up of {num_warmup} rows is too short; at least 10 are needed")
        self.spec = spec
        self.num_warmup = num_warmup
        self.seed = seed
        self.online: OnlineEnsemble | None = None
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._kept: Tensor | None = None
        self._standardizer: Standardizer | None = None

    @property
    def num_waiting(self) -> int:
        """Targets seen that still wait for the fit."""
        return sum(int((~y.isnan()).sum()) for _, y in self._waiting)

    def observe(self, X: Tensor, y: Tensor) -> None:
        """Learn rows in order, or keep them while the warm-up lasts.

        Args:
            X: Inputs in their units, shape (N, D), float64, finite.
            y: Targets in their units, shape (N,); NaN where missing.
        """
        if self.online is not None:
            self._stream(self.online, X, y)
            return
        self._waiting.append((X.clone(), y.clone()))
        if self.num_waiting >= self.num_warmup:
            try:
                self.fit_now()
            except BaseException:
                self._waiting.pop()
                raise

    def fit_now(self) -> None:
        """Fit to the first rows kept, then learn those beyond the warm-up.

        Raises:
            ValueError: If fewer than ten targets wait, or they or all inputs are constant.
        """
        X = torch.cat([rows for rows, _ in self._waiting])
        y = torch.cat([targets for _, targets in self._waiting])
        seen = (~y.isnan()).cumsum(0)
        num_rows = int((seen < min(self.num_warmup, int(seen[-1]))).sum()) + 1
        constant = set(constant_columns(X[:num_rows]))
        kept = [j for j in range(X.shape[1]) if j not in constant]
        if not kept:
            raise ValueError(f"all inputs are constant in the {num_rows} warm-up rows; use a longer warm-up")
        self._kept = torch.tensor(kept, dtype=torch.int64, device=X.device)
        self._standardizer = Standardizer.fit(X[:num_rows, kept], y[:num_rows])
        warm_X, warm_y = self._standardizer.transform(X[:num_rows, kept], y[:num_rows])
        online = self.spec.fit(warm_X, warm_y, generator=torch.Generator().manual_seed(self.seed))
        if num_rows < X.shape[0]:
            self._stream(online, X[num_rows:], y[num_rows:])
        self.online = online
        self._waiting = []

    def predict(self, X: Tensor) -> Mixture:
        """Predictive mixture one step ahead at each row of X (N, D), in the units of the target."""
        if self.online is None or self._standardizer is None or self._kept is None:
            return self._running(X)
        mixture = self.online.predict(self._standardizer.transform_inputs(X[:, self._kept]))
        assert isinstance(mixture, Mixture)  # only real targets are predicted here
        return Mixture(
            mixture.log_weights,
            self._standardizer.inverse_mean(mixture.component_mean),
            self._standardizer.inverse_variance(mixture.component_variance),
        )

    def _running(self, X: Tensor) -> Mixture:
        targets = torch.cat([X.new_zeros(0), *(y[~y.isnan()] for _, y in self._waiting)])
        mean = targets.mean() if targets.numel() else X.new_zeros(())
        variance = targets.var() if targets.numel() > 1 else X.new_ones(())
        variance = torch.where(variance > 0, variance, torch.ones_like(variance))
        shape = (1, X.shape[0])
        return Mixture(X.new_zeros(1), mean.expand(shape), variance.expand(shape))

    def _stream(self, online: OnlineEnsemble, X: Tensor, y: Tensor) -> None:
        assert self._standardizer is not None
        assert self._kept is not None
        online.observe(*self._standardizer.transform(X[:, self._kept], y))
