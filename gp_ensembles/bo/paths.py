r"""Functions drawn from the posterior of exact processes (Matheron's rule), and Thompson sampling with them.

A draw selects a process by weight, and a function g from its prior in random features. With
:math:`\epsilon \sim N(0, \sigma^2 I)`,

.. math:: f(x) = g(x) + k(x, X)\, (K + \sigma^2 I)^{-1} (y - g(X) - \epsilon)

is a posterior draw (Wilson et al., 2020) that can be evaluated and differentiated anywhere: exact at the
rows, and as accurate as the features far from them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, final

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.deterministic import GenericDeterministicModel
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths, draw_matheron_paths
from botorch.utils.sampling import manual_seed, optimize_posterior_samples
from torch import Tensor
from torch.distributions import Categorical, Gamma

from gp_ensembles.bo.exact_kernels import Hyperparameters, Kernels, covariance_between
from gp_ensembles.bo.exact_model import ExactEnsembleModel
from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.numerics.draws import generator_device

_NUM_FREQUENCIES = 512


@final
class ExactPath(SamplePath):
    """Functions drawn from the posterior of an ``ExactEnsembleModel``; data sets and outputs are last in the batch."""

    def __init__(self, model: ExactEnsembleModel, shape: torch.Size, functions: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model: ExactEnsembleModel = model
        self.shape = shape
        self.functions = functions  # values (*t, *shape, N) at transformed points (*t, *shape, N, D)

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Do nothing: every draw comes from one process."""

    def forward(self, X: Tensor, **_: Any) -> Tensor:
        r"""Values at X (\*t, N, D), shape (\*b, N), where \*b ends in the shape of the draws."""
        inputs = self.model.inputs_at(X).double()
        batch = torch.broadcast_shapes(inputs.shape[:-2], self.shape)
        values = self.functions(inputs.expand(*batch, *inputs.shape[-2:])).to(X)
        transform, several = getattr(self.model, "outcome_transform", None), self.model.num_outputs > 1
        if transform is None:
            return values
        outcomes: Tensor = transform.untransform(values.mT if several else values.unsqueeze(-1), X=X)[0]
        return outcomes.mT if several else outcomes.squeeze(-1)


@DrawMatheronPaths.register(ExactEnsembleModel)  # type: ignore[untyped-decorator]
@torch.no_grad()
def _draw_paths(model: ExactEnsembleModel, *, sample_shape: torch.Size, **_: Any) -> ExactPath:
    """Called by BoTorch's ``draw_matheron_paths``; data sets of a batch and outputs are additional dimensions."""
    kernels, rows, learned = model.processes()
    assert learned.inverse is not None
    chosen = Categorical(logits=learned.log_density).sample(sample_shape)  # (*s, *b), of data sets and outputs *b
    axis, (num_rows, num_inputs) = chosen.ndim, rows.X.shape[-2:]

    def of_chosen(values: Tensor) -> Tensor:  # (*s, *b, M, ...) to (*s, *b, 1, ...)
        index = chosen.reshape(*chosen.shape, *[1] * (values.ndim - axis))
        return values.gather(axis, index.expand(*chosen.shape, 1, *values.shape[axis + 1 :]))

    own = Hyperparameters(*(of_chosen(value.expand(*sample_shape, *value.shape)) for value in model.hyperparameters))
    one, nu = Kernels(kernels.shapes[chosen].unsqueeze(-2), None), model.smoothness[chosen].unsqueeze(-1)
    draw = partial(torch.randn, dtype=rows.X.dtype, device=rows.X.device)
    spread = Gamma(nu.clamp_max(9.0), nu.clamp_max(9.0)).expand([*chosen.shape, _NUM_FREQUENCIES]).sample()
    spread = torch.where(nu.isinf(), 1.0, spread).unsqueeze(-1)  # frequencies follow Student's t with 2 nu degrees
    frequencies = draw(*chosen.shape, _NUM_FREQUENCIES, num_inputs) / spread.sqrt() / own.lengthscale
    weights = draw(*chosen.shape, 2 * _NUM_FREQUENCIES, 1) * (own.outputscale.unsqueeze(-1) / _NUM_FREQUENCIES).sqrt()
    constants, errors = draw(*chosen.shape, 1), draw(*chosen.shape, num_rows)

    def prior(X: Tensor) -> Tensor:
        phases = X @ frequencies.mT
        return (torch.cat([phases.cos(), phases.sin()], dim=-1) @ weights).squeeze(-1) + constants

    noise = own.noise if rows.noise is None else rows.noise.squeeze(-1)
    gap = (rows.Y.squeeze(-1) - prior(rows.X) - noise.sqrt() * errors).reshape(-1, *rows.X.shape[:-1])  # (S, *b, n)
    update = gap.movedim(0, -2).unsqueeze(-3) @ learned.inverse.mT @ learned.inverse  # (*b, M, S, n)
    update = of_chosen(update.movedim(-2, 0).reshape(*chosen.shape, -1, num_rows)).mT

    def posterior(X: Tensor) -> Tensor:
        cross = covariance_between(one, own, X, rows.X).squeeze(-3)
        return prior(X) + (cross @ update).squeeze(-1)

    return ExactPath(model, chosen.shape, posterior)


def thompson(
    model: ExactEnsembleModel,
    bounds: Tensor,
    q: int = 1,
    *,
    raw_samples: int = 1024,
    num_restarts: int = 5,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""The maxima of q functions drawn from the posterior: Thompson sampling by an ensemble (Lu et al., 2023).

    For a drifting objective, let time be an input column, and set both its bounds to the next time.

    Args:
        model: A model of one output and data set.
        bounds: Lower and upper bounds of the inputs, shape (2, D); an input with equal bounds is fixed.
        q: Number of points.
        raw_samples: Points at which each function is evaluated; the best are refined by L-BFGS-B.
        num_restarts: Number of points that are refined.
        generator: Source of randomness; torch's global one if ``None``.

    Returns:
        Points to observe next, shape (q, D).

    Raises:
        UnsupportedError: If the model has no sample paths, or several outputs or data sets.
        ValueError: If the number of points is not positive, or bounds are invalid.

    Example:
        >>> import torch
        >>> X = torch.linspace(0, 1, 9, dtype=torch.float64).unsqueeze(-1)
        >>> model = ExactEnsembleModel(X, -(X - 0.3).square()).fit()
        >>> best = thompson(model, torch.tensor([[0.0], [1.0]]).double(), 4)
        >>> bool((best - 0.3).abs().max() < 0.1)
        True
    """
    is_box = isinstance(bounds, Tensor) and bounds.shape[:-1] == (2,) and bounds.is_floating_point()
    if q < 1 or not is_box or not bool((bounds.isfinite() & (bounds[0] <= bounds[1])).all()):
        raise ValueError(
            f"thompson needs q >= 1 and finite bounds of shape (2, D), lower bounds first; got {q} and {bounds}"
        )
    if model.num_outputs > 1 or len(model.batch_shape):
        words = "scalarize the outputs first, or draw by posterior(grid).rsample()"
        raise UnsupportedError(f"thompson takes one output and data set, no members or fantasies: {words}")

    def within(u: Tensor) -> Tensor:  # from the unit cube: BoTorch draws its points even if bounds are equal
        return torch.lerp(bounds[0], bounds[1], u.to(bounds))

    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator_device(generator)))
    with manual_seed(seed):
        paths = draw_matheron_paths(model, torch.Size([q]))
        unit = torch.stack([torch.zeros_like(bounds[0]), torch.ones_like(bounds[0])])
        scaled = GenericDeterministicModel(lambda u: paths(within(u)).unsqueeze(-1).to(u))
        best, _ = optimize_posterior_samples(scaled, unit.cpu(), raw_samples, num_restarts)
    return within(best.detach())


@DrawMatheronPaths.register(MixtureModel)  # type: ignore[untyped-decorator]
def _refuse_paths(model: MixtureModel, **_: Any) -> NoReturn:
    """Called by BoTorch's pathwise functions for the other models."""
    raise UnsupportedError(
        f"{type(model).__name__} has no sample paths: use an ExactEnsembleModel, or posterior(grid).rsample()"
    )
