"""Everything a run of Hamiltonian chains needs to go on: positions, adaptation and random numbers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.fusion.dual_averaging import DualAveraging, start_averaging
from gp_ensembles.fusion.leapfrog import LogDensity, Points, evaluate, reasonable_step
from gp_ensembles.fusion.metric import Moments, start_moments
from gp_ensembles.fusion.trajectory_length import LengthState, start_length

# Leapfrog steps of the longest trajectory while no metric is known.
_FIRST_STEPS = 10.0


class ChainState(NamedTuple):
    """Chains between two transitions.

    Args:
        points: Positions of C chains in D dimensions, their log densities and gradients.
        scale: Standard deviations that the metric takes for granted, shape (D,).
        moments: Of the draws since the last metric.
        averaging: Adaptation of the step size.
        length: Adaptation of the longest trajectory.
        iteration: Transitions made, warm-up included.
        generators: States of the chains' random number generators, bytes, shape (C, n).

    Example:
        >>> import torch
        >>> theta = torch.zeros(4, 2, dtype=torch.float64)
        >>> state = initial_state(lambda theta: -theta.square().sum(-1), theta, generator=torch.Generator())
        >>> saved = state.to_tensors()
        >>> ChainState.from_tensors(saved).iteration
        0
    """

    points: Points
    scale: Tensor
    moments: Moments
    averaging: DualAveraging
    length: LengthState
    iteration: int
    generators: Tensor

    @property
    def step(self) -> float:
        """Step size to keep, the average of those tried."""
        return math.exp(self.averaging.log_average)

    @property
    def longest(self) -> float:
        """Longest trajectory to keep, the average of those tried."""
        return math.exp(self.length.log_average)

    def to_tensors(self) -> dict[str, Tensor]:
        """A flat dictionary of tensors, for ``torch.save`` or safetensors; floats are kept to the last bit."""
        tensors = {"scale": self.scale, "generators": self.generators, "iteration": _number(self.iteration)}
        for name, part in self._parts().items():
            for key, value in part._asdict().items():
                tensors[f"{name}.{key}"] = value if isinstance(value, Tensor) else _number(value)
        return tensors

    def _parts(self) -> dict[str, Points | Moments | DualAveraging | LengthState]:
        return {"points": self.points, "moments": self.moments, "averaging": self.averaging, "length": self.length}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "ChainState":
        """The state that ``to_tensors`` wrote.

        Raises:
            ValueError: If something is missing.
        """
        try:
            return cls(
                Points(*(tensors[f"points.{key}"] for key in Points._fields)),
                tensors["scale"],
                Moments(
                    *(tensors[f"moments.{key}"] for key in Moments._fields[:-1]),  # type: ignore[arg-type]
                    num_draws=int(tensors["moments.num_draws"]),  # type: ignore[misc]
                ),
                DualAveraging(*(_value(tensors[f"averaging.{key}"]) for key in DualAveraging._fields)),
                LengthState(*(_value(tensors[f"length.{key}"]) for key in LengthState._fields)),
                int(tensors["iteration"]),
                tensors["generators"].cpu(),
            )
        except KeyError as error:
            raise ValueError(f"these are not the tensors of a ChainState: {error} is missing") from error


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64, device="cpu")


def _value(tensor: Tensor) -> Any:
    """The number that ``_number`` wrote: a float or an integer."""
    return tensor.item()


def initial_state(
    log_density: LogDensity, theta: Tensor, *, scale: Tensor | None = None, generator: torch.Generator | None = None
) -> ChainState:
    """Chains before their first transition.

    Every chain gets a generator of its own, seeded from the given one, on the device of the positions: chains draw the
    same numbers whatever happens to their neighbors.

    Args:
        log_density: From positions, shape (C, D), to log densities, shape (C,).
        theta: Where the C chains start, shape (C, D), floating point and finite.
        scale: First guess of the standard deviations, shape (D,), for instance of a Laplace approximation; default 1.
        generator: Seeds the chains.

    Raises:
        ValueError: If the positions, the scales or the log densities there cannot be used.

    Example:
        >>> import torch
        >>> theta = torch.zeros(4, 2, dtype=torch.float64)
        >>> state = initial_state(lambda theta: -theta.square().sum(-1), theta, generator=torch.Generator())
        >>> state.points.log_density
        tensor([-0., -0., -0., -0.], dtype=torch.float64)
    """
    points = _checked_start(log_density, theta)
    scale = torch.ones_like(theta[0]) if scale is None else scale.detach()
    if scale.shape != theta.shape[1:] or not bool((scale.isfinite() & (scale > 0.0)).all()):
        raise ValueError(f"scales must be positive, one for each of the {theta.shape[1]} coordinates")
    seeds_device = "cpu" if generator is None else generator.device
    seeds = torch.randint(2**62, (len(theta),), generator=generator, device=seeds_device).tolist()
    generators = [torch.Generator(theta.device).manual_seed(seed) for seed in seeds]
    momentum, _ = refresh(generators, theta)
    step = reasonable_step(log_density, points, momentum, scale, 0.1)
    return ChainState(
        points,
        scale,
        start_moments(points.theta),
        start_averaging(step),
        start_length(_FIRST_STEPS * step),
        0,
        generator_states(generators),
    )


def _checked_start(log_density: LogDensity, theta: Tensor) -> Points:
    if theta.ndim != 2 or not theta.is_floating_point() or 0 in theta.shape:
        raise ValueError(
            f"chains start at a floating tensor of shape (chains, parameters), got {tuple(theta.shape)} {theta.dtype}"
        )
    with torch.enable_grad():
        value = log_density(theta.detach().clone().requires_grad_())
    if value.shape != theta.shape[:1]:
        raise ValueError(
            f"the log density must turn shape {tuple(theta.shape)} into {tuple(theta.shape[:1])}, one number for each "
            f"chain, but gave {tuple(value.shape)}"
        )
    if not value.requires_grad:
        raise ValueError("the log density does not depend on the parameters, or leaves torch, so it has no gradient")
    points = evaluate(log_density, theta.detach().clone())
    finite = points.theta.isfinite().all(-1) & points.log_density.isfinite() & points.gradient.isfinite().all(-1)
    if not bool(finite.all()):
        bad = (~finite).nonzero().squeeze(-1).tolist()
        raise ValueError(
            f"the log density or its gradient is not finite where chains {bad} start; start them elsewhere, for "
            "instance at modes or at smaller values"
        )
    return points


def refresh(generators: Sequence[torch.Generator], like: Tensor) -> tuple[Tensor, Tensor]:
    """Standard normal momenta, shape (C, D), and logs of uniform numbers, shape (C,), every chain from its generator.

    Example:
        >>> import torch
        >>> momentum, log_uniform = refresh([torch.Generator(), torch.Generator()], torch.zeros(2, 3))
        >>> bool((momentum[0] == momentum[1]).all()), log_uniform.shape
        (True, torch.Size([2]))
    """
    size = like.shape[1] + 1
    normals = torch.stack(
        [torch.randn(size, generator=one, dtype=like.dtype, device=like.device) for one in generators]
    )
    # The last normal number becomes a uniform one: one call for each chain instead of two.
    return normals[:, :-1].contiguous(), torch.special.log_ndtr(normals[:, -1])


def generator_states(generators: Sequence[torch.Generator]) -> Tensor:
    """States of generators, bytes, shape (C, n).

    Example:
        >>> import torch
        >>> generator_states([torch.Generator(), torch.Generator()]).shape[0]
        2
    """
    return torch.stack([one.get_state() for one in generators])


def restored_generators(states: Tensor, device: torch.device) -> list[torch.Generator]:
    """Generators in the given states.

    Example:
        >>> import torch
        >>> states = generator_states([torch.Generator().manual_seed(3)])
        >>> bool((generator_states(restored_generators(states, torch.device("cpu"))) == states).all())
        True
    """
    generators = [torch.Generator(device) for _ in range(len(states))]
    for one, state in zip(generators, states, strict=True):
        one.set_state(state.clone())  # set_state reads a storage from its beginning: no row of a larger tensor
    return generators
