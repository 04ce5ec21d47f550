"""A fitted fusion: fitting, prediction, files."""

import os
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.files.checkpoint import Kind, read_checkpoint, write_checkpoint
from gp_ensembles.numerics.arguments import check_made
from gp_ensembles.numerics.display import block_text, counted, prints_fields
from gp_ensembles.papers.fusion.base import FusionModel
from gp_ensembles.papers.fusion.experts import ExpertPredictions
from gp_ensembles.papers.fusion.gathering import Experts, gather_predictions
from gp_ensembles.papers.fusion.hmc import HMC
from gp_ensembles.papers.fusion.inference import InferenceMethod, InferenceReport, PosteriorDraws
from gp_ensembles.papers.fusion.laplace import LaplaceApproximation
from gp_ensembles.papers.fusion.models import BHS, PBHS
from gp_ensembles.papers.plain import from_plain, to_plain

_KIND = Kind("gp_ensembles fusion", 3, "a fitted fusion", "give what FittedFusion.save wrote")
# Draws whose weights of experts are computed at once.
_DRAWS = 256


@prints_fields
class WeightSummary(NamedTuple):
    """Posterior of the experts' weights at N inputs."""

    mean: Tensor  # shape (K, N)
    quantiles: Tensor  # shape (Q, K, N)
    levels: Tensor  # probabilities of the quantiles, shape (Q,)


@final
class FittedFusion:
    """A fusion model with weighted draws of its parameters.

    Args:
        model: The model.
        posterior: The draws.
        inference: The inference method, for :meth:`sample_more`; ``None`` if there is none.

    Raises:
        ValueError: If the draws do not fit the model.

    Example:
        >>> from gp_ensembles.papers.fusion import MAP, FourierPrior, PoGPE
        >>> X = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> prior = FourierPrior(torch.ones_like(X[:2]))
        >>> model = PoGPE(X, (2 * X).sin().squeeze(-1), 2, prior, prior, prior)
        >>> fitted = fit_fusion(model, MAP())
        >>> fitted.predict(X).mean.shape, fitted.expert_weights(X).quantiles.shape
        (torch.Size([20]), torch.Size([3, 2, 20]))
    """

    def __init__(self, model: FusionModel, posterior: PosteriorDraws, inference: InferenceMethod | None = None) -> None:
        if posterior.theta.ndim != 2 or posterior.theta.shape[1] != model.num_parameters:
            raise ValueError(
                f"this model has {model.num_parameters} parameters, but the draws have shape "
                f"{tuple(posterior.theta.shape)}"
            )
        self.model = model
        self.posterior = posterior
        self.inference = inference

    def __repr__(self) -> str:
        sizes = counted((self.model.num_experts, "expert"), (len(self.model.y), "row"), (len(self.theta), "draw"))
        head = f"FittedFusion of {type(self.model).__name__}, {sizes}"
        return block_text(head, self.report.summary().split("\n"))

    @property
    def theta(self) -> Tensor:
        """Draws of the parameters, shape (S, P)."""
        return self.posterior.theta

    @property
    def log_weights(self) -> Tensor:
        """Their log weights, summing to one, shape (S,)."""
        return self.posterior.log_weights

    @property
    def report(self) -> InferenceReport:
        """Report on the inference of the draws, with diagnostics."""
        return self.posterior.report

    @torch.no_grad()
    def predict(self, X: Tensor, experts: Experts | None = None) -> Mixture:
        """Density of y at inputs X.

        Args:
            X: Inputs, shape (N, D).
            experts: What the experts predict there, or the experts, as :func:`gather_predictions` takes them, for
                models that stack fixed experts; ``None`` for those from which the weights were learned, if they were
                given themselves and not as forecasts.

        Returns:
            A mixture over draws and components, observation noise included.

        Raises:
            TypeError: If one cannot serve as an expert.
            ValueError: If shapes do not fit, or predictions are missing or not wanted.
        """
        predictions = self._predictions(X, experts)
        return self.model.predictive(self.theta, X, predictions, draw_log_weights=self.log_weights)

    def _predictions(self, X: Tensor, experts: Experts | None) -> ExpertPredictions | None:
        if experts is None and isinstance(self.model, BHS | PBHS) and self.model.experts:
            experts = self.model.experts
            forecasts = [k for k, expert in enumerate(experts) if isinstance(expert, ExpertPredictions)]
            if forecasts:
                raise ValueError(
                    f"experts {forecasts} are known by forecasts of other rows only: give their predictions at these "
                    "inputs, in a list with the other experts (model.experts)"
                )
        if experts is None or isinstance(experts, ExpertPredictions):
            return experts
        return gather_predictions(experts, X)

    @torch.no_grad()
    def expert_weights(self, X: Tensor, levels: tuple[float, ...] = (0.05, 0.5, 0.95)) -> WeightSummary:
        """Posterior of the experts' weights at inputs X.

        Weights of a log-linear pool need not sum to one. The experts of :class:`MoGPE` have no fixed labels:
        in different modes the same index may be another expert.

        Args:
            X: Inputs, shape (N, D).
            levels: Probabilities of the quantiles.

        Raises:
            ValueError: If shapes do not fit, or a level is not within [0, 1].
        """
        if not all(0.0 <= level <= 1.0 for level in levels):
            raise ValueError(f"levels of quantiles lie in [0, 1], got {levels}")
        parts = [self.model.log_weights(part, X) for part in self.theta.split(_DRAWS)]
        weights = torch.cat(parts).exp()
        shares = self.log_weights.exp()
        mean = torch.tensordot(shares, weights, 1)
        ordered, order = weights.sort(0)
        below = shares[order].cumsum(0)
        asked = shares.new_tensor(levels)
        # The smallest weight with at least that much probability below or at it.
        reached = below.unsqueeze(0) < asked[:, None, None, None] * below[-1] - 1e-12
        index = reached.sum(1).clamp(max=len(weights) - 1)
        return WeightSummary(mean, ordered.gather(0, index), asked)

    def sample_more(self, num_draws: int, *, progress: bool = False) -> "FittedFusion":
        """The same fusion with more draws of each chain.

        Args:
            num_draws: More draws of each chain.
            progress: Whether to show a progress bar.

        Raises:
            TypeError: If the inference method cannot continue, as :class:`~gp_ensembles.papers.fusion.hmc.HMC` can.
            ValueError: If there is no inference method, as after loading without one.
        """
        if self.inference is None:
            raise ValueError("sample_more needs the original inference method; give it to load(..., inference=)")
        if not isinstance(self.inference, HMC):
            raise TypeError(f"{type(self.inference).__name__} cannot continue; fit again with more draws, or use HMC")
        more = self.inference.sample_more(self.model, self.posterior, num_draws, progress=progress)
        return FittedFusion(self.model, more, self.inference)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write draws, report and the chains' state to a file, whole or not at all.

        The model is not written: build it again and give it to :meth:`load`.

        Args:
            path: The file.
        """
        check, name = _fingerprint(self.model, self.theta), type(self.model).__name__
        write_checkpoint(Path(path), _KIND, {"model": name, "check": check, "posterior": to_plain(self.posterior)})

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], model: FusionModel, *, inference: InferenceMethod | None = None
    ) -> "FittedFusion":
        """Read what :meth:`save` wrote.

        Args:
            path: The file.
            model: The model, built as it was then; its dtype and device are those of the result.
            inference: The inference used then, for ``sample_more``.

        Raises:
            OSError: If it cannot be read.
            ValueError: If the file is not a saved fusion, or was written for another model.
        """
        content = read_checkpoint(Path(path), _KIND)
        try:
            name, check = content["model"], content["check"].to(model.X)
            posterior = from_plain(PosteriorDraws, _moved(content["posterior"], model.X))
            num_parameters = posterior.theta.shape[1]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} is not a saved fusion: {error}") from error
        if name != type(model).__name__ or num_parameters != model.num_parameters:
            raise ValueError(
                f"{path} was written for a {name} with {num_parameters} parameters, but the model is a "
                f"{type(model).__name__} with {model.num_parameters}"
            )
        now = _fingerprint(model, posterior.theta)
        if now.shape != check.shape or not torch.allclose(now, check, rtol=1e-4, atol=1e-4):
            raise ValueError(
                f"{path} was written for another model: its densities of the training rows differ; build the model "
                "with the same data, predictions and priors (the same frequencies)"
            )
        return cls(model, posterior, inference)


def fit_fusion(
    model: FusionModel,
    inference: InferenceMethod | None = None,
    *,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> FittedFusion:
    """Learn the parameters of a fusion model.

    Args:
        model: The model.
        inference: How; a Laplace approximation if ``None``, for a quick look. Use ``HMC()`` for results.
        generator: Source of randomness; torch's global one if ``None``.
        progress: Whether to show a progress bar.

    Raises:
        TypeError: If ``model`` is not a ``FusionModel``.
        NumericalError: If the log joint density cannot be used.

    Example:
        >>> from gp_ensembles.papers.fusion import FourierPrior, HetGP
        >>> X = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> prior = FourierPrior(torch.ones_like(X[:2]))
        >>> fitted = fit_fusion(HetGP(X, X.squeeze(-1), prior, prior))
        >>> fitted.report.method, fitted.predict(X).variance.shape
        ('Laplace', torch.Size([20]))
    """
    check_made("model", model, FusionModel, "HetGP(X, y, prior, prior)")
    chosen = LaplaceApproximation() if inference is None else inference
    return FittedFusion(model, chosen.infer(model, generator=generator, progress=progress), chosen)


@torch.no_grad()
def _fingerprint(model: FusionModel, theta: Tensor) -> Tensor:
    """Fingerprint of a model: log prior and log likelihoods of one draw."""
    one = theta[:1]
    return torch.cat([model.log_prior(one), model.log_likelihood(one).flatten()])


def _moved(plain: Any, like: Tensor) -> Any:
    """Tuples of tensors on the device and, but for scalars, in the dtype of ``like``."""
    if isinstance(plain, tuple):
        return tuple(_moved(part, like) for part in plain)
    if not isinstance(plain, Tensor):
        return plain
    return plain.to(like) if plain.is_floating_point() and plain.ndim else plain.to(like.device)
