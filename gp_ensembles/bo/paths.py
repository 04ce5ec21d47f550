r"""Functions drawn from the posterior of exact processes (Matheron's rule), and Thompson sampling with them.

A draw takes a process by its weight, and a function g of its prior in random features. With
:math:`\epsilon \sim N(0, \sigma^2 I)`,

.. math:: f(x) = g(x) + k(x, X)\, (K + \sigma^2 I)^{-1} (y - g(X) - \epsilon)

is a function of the posterior (Wilson et al., 2020) that can be evaluated and differentiated anywhere: exact at the
rows, and as good as the features far from them.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias, final

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.deterministic import GenericDeterministicModel
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths, draw_matheron_paths
from botorch.utils.sampling import manual_seed, optimize_posterior_samples
from torch import Tensor

from gp_ensembles.bo.data import Observations
from gp_ensembles.bo.exact_kernels import Hyperparameters, Kernels, covariance_between
from gp_ensembles.bo.exact_model import ExactEnsembleModel
from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.numerics.draws import generator_device

_NUM_FREQUENCIES = 512
_Function: TypeAlias = Callable[[Tensor], Tensor]  # values (..., K, N) at X (..., K, N, D)


@final
class ExactPath(SamplePath):
    """Functions drawn from the posterior of an ``ExactEnsembleModel``; data sets and outputs are last in the batch."""

    def __init__(self, model: ExactEnsembleModel, shape: torch.Size, draws: Sequence[tuple[Tensor, _Function]]) -> None:
        super().__init__()
        self.model: ExactEnsembleModel = model
        self.shape = shape
        self.draws = draws  # functions of one process each, after their places among all

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Does nothing: every draw is of one process."""

    def forward(self, X: Tensor, **_: Any) -> Tensor:
        r"""Values at X (\*t, N, D), shape (\*b, N), where \*b ends in the shape of the draws."""
        inputs, num = self.model.inputs_at(X).double(), len(self.shape)
        batch = torch.broadcast_shapes(inputs.shape[:-2], self.shape)
        points = inputs.expand(*batch, *inputs.shape[-2:])
        points = points.reshape(*batch[: len(batch) - num], -1, *inputs.shape[-2:])
        values = torch.cat([function(points[..., places, :, :]) for places, function in self.draws], dim=-2)
        order = torch.cat([places for places, _ in self.draws]).argsort()
        values = values[..., order, :].reshape(*batch, inputs.shape[-2]).to(X)
        transform, several = getattr(self.model, "outcome_transform", None), self.model.num_outputs > 1
        if transform is None:
            return values
        outcomes: Tensor = transform.untransform(values.mT if several else values.unsqueeze(-1), X=X)[0]
        return outcomes.mT if several else outcomes.squeeze(-1)


@DrawMatheronPaths.register(ExactEnsembleModel)  # type: ignore[untyped-decorator]
@torch.no_grad()
def _draw_paths(model: ExactEnsembleModel, *, sample_shape: torch.Size, **_: Any) -> ExactPath:
    """What BoTorch's ``draw_matheron_paths`` calls; data sets of a batch and outputs are further dimensions."""
    kernels, rows, learned = model.processes()
    data_sets: torch.Size = rows.X.shape[:-2]
    assert learned.inverse is not None
    count, num_experts = data_sets.numel(), model.num_experts
    log_weights = learned.log_density.reshape(count, num_experts).log_softmax(-1)
    chosen = torch.multinomial(log_weights.exp(), sample_shape.numel(), replacement=True).mT
    process = (chosen + num_experts * torch.arange(count, device=chosen.device)).flatten()
    flat = Hyperparameters(*(value.flatten(0, len(data_sets)) for value in model.hyperparameters))
    each = rows.map(lambda part: part.reshape(count, *part.shape[-2:]))
    inverses = learned.inverse.reshape(-1, *learned.inverse.shape[-2:])
    draws = []
    for number in process.unique().tolist():
        output, expert = divmod(number, num_experts)
        places = (process == number).nonzero().squeeze(-1)
        own = Hyperparameters(*(value[number : number + 1] for value in flat))
        one = Kernels(kernels.shapes[expert : expert + 1], None)
        some = each.map(lambda part, output=output: part[output])  # type: ignore[misc]
        draws.append((places, _functions(one, model.kernels[expert], own, some, inverses[number], len(places))))
    return ExactPath(model, torch.Size([*sample_shape, *data_sets]), draws)


def _functions(
    kernels: Kernels, nu: float, own: Hyperparameters, rows: Observations, inverse: Tensor, count: int
) -> _Function:
    """So many functions of the posterior of one process, with the inverse of its factor (n, n)."""
    num_rows, num_inputs = rows.X.shape
    draw = partial(torch.randn, dtype=rows.X.dtype, device=rows.X.device)
    frequencies = draw(_NUM_FREQUENCIES, num_inputs)
    if not math.isinf(nu):  # Student's t with 2 nu degrees of freedom
        frequencies = frequencies / draw(_NUM_FREQUENCIES, round(2 * nu)).square().mean(-1, keepdim=True).sqrt()
    frequencies = frequencies / own.lengthscale
    normals = draw(count, 2 * _NUM_FREQUENCIES + 1 + num_rows)
    weights, constants, errors = normals.split([2 * _NUM_FREQUENCIES, 1, num_rows], dim=-1)
    weights = weights * (own.outputscale / _NUM_FREQUENCIES).sqrt()

    def prior(X: Tensor) -> Tensor:
        phases = X @ frequencies.mT
        values: Tensor = torch.cat([phases.cos(), phases.sin()], dim=-1) @ weights.unsqueeze(-1)
        return values.squeeze(-1) + constants

    noise = own.noise if rows.noise is None else rows.noise.squeeze(-1)
    gap = rows.Y.squeeze(-1) - prior(rows.X.expand(count, -1, -1)) - noise.sqrt() * errors
    update = gap @ inverse.mT @ inverse

    def posterior(X: Tensor) -> Tensor:
        cross = covariance_between(kernels, own, X, rows.X).squeeze(-3)
        return prior(X) + (cross @ update.unsqueeze(-1)).squeeze(-1)

    return posterior


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

    For an objective that drifts, let the time be a column of the inputs, and both its bounds the time to come.

    Args:
        model: A model of one output and data set.
        bounds: Lower and upper bounds of the inputs, shape (2, D); an input whose bounds are equal is held there.
        q: Number of points.
        raw_samples: Points at which each function is evaluated before its best ones are improved by gradients.
        num_restarts: How many are improved.
        generator: Source of randomness; torch's global one if ``None``.

    Returns:
        Points to observe next, shape (q, D).

    Raises:
        UnsupportedError: If the model has no paths, or several outputs or data sets.
        ValueError: If the number of points is not positive, or bounds are none.

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
            f"thompson takes at least one point and finite bounds (2, D), lower ones first; got {q} and {bounds}"
        )
    if model.num_outputs > 1 or len(model.batch_shape):
        raise UnsupportedError("the maximum is of one output and data set, without members or fantasies")

    def within(u: Tensor) -> Tensor:  # from the unit cube, whose points BoTorch draws also where bounds are equal
        return torch.lerp(*bounds, u.to(bounds))

    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator_device(generator)))
    with manual_seed(seed):
        paths = draw_matheron_paths(model, torch.Size([q]))
        unit = torch.stack([torch.zeros_like(bounds[0]), torch.ones_like(bounds[0])])
        scaled = GenericDeterministicModel(lambda u: paths(within(u)).unsqueeze(-1).to(u))
        best, _ = optimize_posterior_samples(scaled, unit.cpu(), raw_samples, num_restarts)
    return within(best.detach())


@DrawMatheronPaths.register(MixtureModel)  # type: ignore[untyped-decorator]
def _refuse_paths(model: MixtureModel, **_: Any) -> NoReturn:
    """What BoTorch's pathwise functions call for the other models."""
    raise UnsupportedError(
        f"draws of {type(model).__name__} are no functions in closed form; give an ExactEnsembleModel, or take the "
        f"best of model.posterior(grid).rsample(...) on a grid of points"
    )
