"""Copies of a mixture under permutations and reflections of its components, counted in importance weights."""

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.papers.quadrature.prior import EDGE, Hyperprior
from gp_ensembles.papers.quadrature.spectral_mixture import Reflection
from gp_ensembles.papers.quadrature.student_mixture import StudentMixture

_DEGREES_OF_FREEDOM = 5.0
_LEAST_SD = 1e-6
_CHUNK = 2**22  # numbers of a table of subsets in memory


class Slots(NamedTuple):
    """Where the components of K kernels are, each by itself.

    Args:
        log_weights: Of the kernels, shape (K,).
        location: Features of their components, shape (K, n, p).
        scale: Standard deviations of those, shape (K, n, p).
    """

    log_weights: Tensor
    location: Tensor
    scale: Tensor


class Relabeling:
    r"""The group G of permutations and reflections that change no kernel with n components, nor its prior density.

    With any positive function h the share :math:`a(v) = |G|\, h(v) / \sum_{g \in G} h(g v)` has the mean one over the
    copies of a point, so that

    .. math:: \int L(v)\, \pi(v)\, dv = \int a(v)\, L(v)\, \pi(v)\, dv,

    and the integrand on the right is close to zero except at one copy of each mode. Here h is a mixture, over the
    proposal's components, of products of Student-t densities of one kernel component each.
    """

    def __init__(self, prior: Hyperprior, components: int, reflection: Reflection) -> None:
        self.prior = prior
        self.components = components
        self.each_input: bool = reflection.each_input and prior.num_inputs > 1
        symmetric = prior.has_signed_means and bool(
            (prior.means.icdf(prior.means.scale.new_full((1,), 0.5)) == 0).all()
        )
        self.signed = symmetric

    @property
    def num_copies(self) -> int:
        """The order of the group."""
        signs = self.components * (self.prior.num_inputs if self.each_input else 1) if self.signed else 0
        return math.factorial(self.components) * (1 << signs)

    def features(self, points: Tensor) -> Tensor:
        r"""Every component's means and scales in normal quantiles, and its log weight: (S, n, 2 D + 1)."""
        n, num_inputs = self.components, self.prior.num_inputs
        cube = self.prior.embed(torch.special.ndtr(points).clamp(EDGE, 1.0 - EDGE), n)
        weights = self.prior.mixtures(cube).weights[..., :n]
        means, scales = points[..., n - 1 :].split([n * num_inputs, points.shape[-1] - n + 1 - n * num_inputs], -1)
        parts = [means.unflatten(-1, (n, num_inputs)), scales[..., : n * num_inputs].unflatten(-1, (n, num_inputs))]
        return torch.cat([*parts, weights.log().unsqueeze(-1)], -1)

    def slots(self, mixture: StudentMixture) -> Slots:
        """Features of the components of a proposal, and their spread to first order."""
        shifts = mixture.factors.mT  # (K, d, d): axes of the scale matrix in rows
        center = mixture.means.unsqueeze(-2)
        ahead, behind = self.features(center + shifts), self.features(center - shifts)
        scale = (0.5 * (ahead - behind)).square().sum(-3).sqrt().clamp_min(_LEAST_SD)
        return Slots(mixture.log_weights.log_softmax(-1), self.features(mixture.means), scale)

    def log_share(self, points: Tensor, mixture: StudentMixture) -> Tensor:
        """Log a(v) of points (S, d), shape (S,): at most the logarithm of the number of copies."""
        if self.num_copies == 1:
            return points.new_zeros(len(points))
        slots = self.slots(mixture)
        widest = math.comb(self.components, self.components // 2) * self.components
        size = max(1, _CHUNK // (widest * len(slots.log_weights)))
        parts = [self._log_share(self.features(part), slots) for part in points.split(size)]
        return torch.cat(parts)

    def _log_share(self, features: Tensor, slots: Slots) -> Tensor:
        own, copies = self._log_tables(features, slots)  # (S, K, n, n)
        places = torch.arange(self.components, device=features.device)
        identity = own[..., places, places].sum(-1) + slots.log_weights
        every = log_permanent(copies) + slots.log_weights
        share: Tensor = identity.logsumexp(-1) - every.logsumexp(-1) + math.log(self.num_copies)
        return share

    def _log_tables(self, features: Tensor, slots: Slots) -> tuple[Tensor, Tensor]:
        """Log densities of every component in every slot: as it is, and summed over its reflections."""
        x = features[:, None, :, None, :]
        location, scale = slots.location[:, None], slots.scale[:, None]
        squares = ((x - location) / scale).square()
        log_volume = scale.log().sum(-1)
        half = 0.5 * (_DEGREES_OF_FREEDOM + features.shape[-1])

        def log_density(distance: Tensor) -> Tensor:
            return -half * torch.log1p(distance / _DEGREES_OF_FREEDOM) - log_volume

        own = log_density(squares.sum(-1))
        if not self.signed:
            return own, own
        num_inputs = self.prior.num_inputs
        mirrored = ((x + location) / scale).square()[..., :num_inputs]
        rest = squares[..., num_inputs:].sum(-1)
        if not self.each_input:
            return own, torch.logaddexp(own, log_density(mirrored.sum(-1) + rest))
        copies = []
        for signs in itertools.product((False, True), repeat=num_inputs):
            flipped = torch.tensor(signs, dtype=torch.bool, device=features.device)
            distance = torch.where(flipped, mirrored, squares[..., :num_inputs]).sum(-1)
            copies.append(log_density(distance + rest))
        return own, torch.stack(copies).logsumexp(0)


def log_permanent(logs: Tensor) -> Tensor:
    r"""Logarithm of the permanent, :math:`\log \sum_\pi \prod_i e^{a_{i \pi(i)}}`, of matrices (\*batch, n, n)."""
    size = logs.shape[-1]
    before: dict[tuple[int, ...], int] = {(): 0}
    total = logs.new_zeros(*logs.shape[:-2], 1)
    for row in range(size):
        subsets = list(itertools.combinations(range(size), row + 1))
        rest = [[before[tuple(c for c in subset if c != column)] for column in subset] for subset in subsets]
        total = (total[..., rest] + logs[..., row, :][..., [list(subset) for subset in subsets]]).logsumexp(-1)
        before = {subset: place for place, subset in enumerate(subsets)}
    value: Tensor = total.squeeze(-1)
    return value
