"""A fusion model with what was learned about its parameters."""

import os
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.ensembles.mixture import Mixture
from gp_ensembles.fusion.experts import ExpertPredictions
from gp_ensembles.fusion.hamiltonian import HMC
from gp_ensembles.fusion.inference import Inference, Inferred
from gp_ensembles.fusion.laplace import Laplace
from gp_ensembles.fusion.model import FusionModel
from gp_ensembles.fusion.report import Report
from gp_ensembles.fusion.storage import pack, unpack

_FORMAT = 1
# Draws whose weights of experts are computed at once.
_DRAWS = 256


class WeightBands(NamedTuple):
    """Posterior of the experts' weights at N inputs.

    Args:
        mean: Means, shape (K, N).
        quantiles: Quantiles, shape (Q, K, N).
        levels: Their probabilities, shape (Q,).
    """

    mean: Tensor
    quantiles: Tensor
    levels: Tensor


@final
class FittedFusion:
    """A fusion model and weighted draws of its parameters: what predicts.

    Args:
        model: The model.
        inferred: What an inference found.
        inference: The inference, which ``more`` asks for further draws; ``None`` if there is none to ask.

    Raises:
        ValueError: If the draws do not fit the model.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.joint_models import PoGPE
        >>> from gp_ensembles.fusion.roles import FourierRole
        >>> X = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> role = FourierRole(torch.ones_like(X[:2]))
        >>> model = PoGPE(X, (2 * X).sin().squeeze(-1), 2, role, role, role)
        >>> fitted = fit_fusion(model, Laplace(num_draws=50), progress=False)
        >>> fitted.predict(X).mean.shape, fitted.expert_weights(X).quantiles.shape
        (torch.Size([20]), torch.Size([3, 2, 20]))
    """

    def __init__(self, model: FusionModel, inferred: Inferred, inference: Inference | None = None) -> None:
        if inferred.theta.ndim != 2 or inferred.theta.shape[1] != model.num_parameters:
            raise ValueError(
                f"this model has {model.num_parameters} parameters, but the draws have shape "
                f"{tuple(inferred.theta.shape)}"
            )
        self.model = model
        self.inferred = inferred
        self.inference = inference

    @property
    def theta(self) -> Tensor:
        """Draws of the parameters, shape (S, P)."""
        return self.inferred.theta

    @property
    def log_weights(self) -> Tensor:
        """Their log weights, summing to one, shape (S,)."""
        return self.inferred.log_weights

    @property
    def report(self) -> Report:
        """How the draws were found and how far to believe them."""
        return self.inferred.report

    @torch.no_grad()
    def predict(
        self,
        X: Tensor,
        predictions: ExpertPredictions | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Mixture:
        """Density of y at inputs X.

        Args:
            X: Inputs, shape (N, D).
            predictions: The experts' predictions at X, for models that stack fixed experts.
            generator: Source of randomness of what the parameters leave open (exact GPs as weights).

        Returns:
            A mixture over draws and components, observation noise included.

        Raises:
            ValueError: If shapes do not fit, or predictions are missing or not wanted.
        """
        return self.model.predictive(
            self.theta, X, predictions, draw_log_weights=self.log_weights, generator=generator
        )  # fmt: skip

    @torch.no_grad()
    def expert_weights(
        self,
        X: Tensor,
        levels: tuple[float, ...] = (0.05, 0.5, 0.95),
        *,
        generator: torch.Generator | None = None,
    ) -> WeightBands:
        """Posterior of the experts' weights at inputs X.

        Weights of a log-linear pool need not sum to one. The experts of a mixture that is learned have no fixed
        labels: where chains are in different modes, an expert is not the same in all draws.

        Args:
            X: Inputs, shape (N, D).
            levels: Probabilities of the quantiles.
            generator: As for :meth:`predict`.

        Raises:
            ValueError: If shapes do not fit, or a level is not within [0, 1].
        """
        if not all(0.0 <= level <= 1.0 for level in levels):
            raise ValueError(f"levels of quantiles lie in [0, 1], got {levels}")
        parts = [self.model.log_weights(part, X, generator=generator) for part in self.theta.split(_DRAWS)]
        weights = torch.cat(parts).exp()
        shares = self.log_weights.exp()
        mean = torch.tensordot(shares, weights, 1)
        ordered, order = weights.sort(0)
        below = shares[order].cumsum(0)
        asked = shares.new_tensor(levels)
        # The smallest weight with at least that much probability below or at it.
        reached = below.unsqueeze(0) < asked[:, None, None, None] * below[-1] - 1e-12
        index = reached.sum(1).clamp(max=len(weights) - 1)
        return WeightBands(mean, ordered.gather(0, index), asked)

    def more(self, num_draws: int, *, progress: bool = True) -> "FittedFusion":
        """The same with further draws of each chain.

        Args:
            num_draws: Further draws of each chain.
            progress: Whether to show a progress bar.

        Raises:
            TypeError: If the inference keeps no state to go on from; only chains do.
            ValueError: If no inference is known, as after loading without one.
        """
        if self.inference is None:
            raise ValueError("no inference is known to go on with; give the one used before to load(..., inference=)")
        if not isinstance(self.inference, HMC):
            raise TypeError(
                f"{type(self.inference).__name__} keeps no state to go on from; fit again with more draws, or use HMC"
            )
        more = self.inference.more(self.model, self.inferred, num_draws, progress=progress)
        return FittedFusion(self.model, more, self.inference)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write draws, report and the chains' state to an .npz file, whole or not at all, without pickle.

        The model is not written: build it again and give it to :meth:`load`.

        Args:
            path: The file.
        """
        goal = Path(path)
        content = pack(self.inferred)
        content["check"] = _check(self.model, self.theta).cpu().numpy()
        content["model"] = np.asarray(type(self.model).__name__)
        content["format"] = np.asarray(_FORMAT)
        partial = goal.with_name(f".{goal.name}.{os.getpid()}.partial")
        try:
            with partial.open("wb") as file:
                np.savez_compressed(file, **content)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, goal)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], model: FusionModel, *, inference: Inference | None = None
    ) -> "FittedFusion":
        """Read what :meth:`save` wrote.

        Args:
            path: The file.
            model: The model, built as it was then; its dtype and device are those of the result.
            inference: The inference used then, if ``more`` is to go on.

        Raises:
            ValueError: If the file is no such file, or was written for another model.
        """
        try:
            with Path(path).open("rb") as file:
                if not zipfile.is_zipfile(file):
                    raise zipfile.BadZipFile("it is no .npz file")
                file.seek(0)
                with np.load(file, allow_pickle=False) as arrays:
                    content = {name: arrays[name] for name in arrays.files}
            if int(content["format"]) != _FORMAT:
                raise ValueError(f"{path} has format {int(content['format'])}, this version reads {_FORMAT}")
            name, check = str(content["model"]), torch.as_tensor(content["check"]).to(model.X)
            inferred = unpack(content, model.X)
        except (KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise ValueError(f"{path} is not a saved fusion, or is damaged: {error}") from error
        if name != type(model).__name__ or inferred.theta.shape[1] != model.num_parameters:
            raise ValueError(
                f"{path} was written for a {name} with {inferred.theta.shape[1]} parameters, but the model is a "
                f"{type(model).__name__} with {model.num_parameters}"
            )
        now = _check(model, inferred.theta)
        if now.shape != check.shape or not torch.allclose(now, check, rtol=1e-4, atol=1e-4):
            raise ValueError(
                f"{path} was written for another model: its densities of the training rows differ; build the model "
                "with the same data, predictions and roles (the same frequencies)"
            )
        return cls(model, inferred, inference)


def fit_fusion(
    model: FusionModel,
    inference: Inference | None = None,
    *,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> FittedFusion:
    """Learn the parameters of a fusion model.

    Args:
        model: The model.
        inference: How; a Laplace approximation if ``None``, for a quick look. Use ``HMC()`` for results.
        generator: Source of randomness; torch's global one if ``None``.
        progress: Whether to show a progress bar.

    Raises:
        NumericalError: If the log joint density cannot be used.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.joint_models import HetGP
        >>> from gp_ensembles.fusion.roles import FourierRole
        >>> X = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> role = FourierRole(torch.ones_like(X[:2]))
        >>> fitted = fit_fusion(HetGP(X, X.squeeze(-1), role, role), progress=False)
        >>> fitted.report.method, fitted.predict(X).variance.shape
        ('Laplace', torch.Size([20]))
    """
    chosen = Laplace() if inference is None else inference
    return FittedFusion(model, chosen.infer(model, generator=generator, progress=progress), chosen)


@torch.no_grad()
def _check(model: FusionModel, theta: Tensor) -> Tensor:
    """Numbers that tell one model from another: the prior and the likelihoods of one draw."""
    one = theta[:1]
    return torch.cat([model.log_prior(one), model.pointwise(one).flatten()])
