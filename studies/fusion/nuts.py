"""NumPyro's no-U-turn sampler, with which the fusion paper found its posteriors."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gp_ensembles.numerics.draws import generator_device
from gp_ensembles.papers.fusion.base import FusionModel
from gp_ensembles.papers.fusion.chees import Chains, init_chains
from gp_ensembles.papers.fusion.hmc import combine_chains, stacked_chains
from gp_ensembles.papers.fusion.inference import InferenceMethod, PosteriorDraws, finite_starts, without_parameters
from gp_ensembles.papers.fusion.leapfrog import evaluate

# Records of each transition.
_FIELDS = ("potential_energy", "energy", "diverging", "num_steps", "accept_prob")


@final
@dataclass(frozen=True)
class NUTS(InferenceMethod):
    """NumPyro's no-U-turn sampler, an independent check; needs ``gp_ensembles[numpyro]``.

    Log densities and gradients stay in torch, and jax calls them: any model works, but small models
    take many times as long as with :class:`HMC`. Chains start at draws of the prior and move
    in step. They cannot be continued.

    Args:
        num_chains: Number of chains.
        num_draws: Draws of each after the warm-up.
        num_warmup: Warm-up transitions.
        max_tree_depth: A trajectory has at most two to this power less one steps.
        target_acceptance: Target of the acceptance probability.
        chain_weighting: Weights of the chains.

    Raises:
        ValueError: If a number is not at least one, or the target not between 0 and 1.

    Example:
        >>> NUTS(num_draws=100).max_tree_depth
        8
    """

    num_chains: int = 4
    num_draws: int = 500
    num_warmup: int = 500
    max_tree_depth: int = 8
    target_acceptance: float = 0.8
    chain_weighting: Callable[[Tensor], Tensor] = stacked_chains

    def __post_init__(self) -> None:
        if min(self.num_chains, self.num_draws, self.num_warmup, self.max_tree_depth) < 1:
            raise ValueError(
                "numbers of chains, of draws, of warm-up transitions and the tree depth must be at least 1"
            )
        if not 0.0 < self.target_acceptance < 1.0:
            raise ValueError(f"target_acceptance must lie between 0 and 1, got {self.target_acceptance}")

    def infer(
        self, model: FusionModel, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> PosteriorDraws:
        """Weighted draws of all chains that have weight.

        Raises:
            ImportError: If NumPyro is not installed.
        """
        began = time.perf_counter()
        if not model.num_parameters:
            return without_parameters(model, "NUTS")
        start = finite_starts(model, model.draw_prior(self.num_chains, generator=generator))
        seed = int(torch.randint(2**31, (), generator=generator, device=generator_device(generator)))
        theta, fields = self._run(model, start, seed, progress)
        # As the chains of sample_hmc.
        draws = Chains(
            theta,
            -fields["potential_energy"].to(theta),
            fields["accept_prob"].to(theta),
            theta.diff(dim=1, prepend=theta[:, :1] * torch.nan).ne(0).any(-1),
            fields["diverging"].to(theta.device),
            fields["energy"].to(theta),
            fields["num_steps"].amax(0).to(theta.device),
            init_chains(model.log_joint, theta[:, -1], generator=generator),
        )
        return combine_chains(model, draws, self.chain_weighting, "NUTS", began, [])

    def _run(self, model: FusionModel, start: Tensor, seed: int, progress: bool) -> tuple[Tensor, dict[str, Tensor]]:
        try:
            import jax
            from numpyro import infer
        except ImportError:
            raise ImportError('NumPyro is not installed: pip install "gp_ensembles[numpyro]"') from None

        dtype = np.asarray(start.cpu().numpy()).dtype
        shapes = (jax.ShapeDtypeStruct((), dtype), jax.ShapeDtypeStruct((start.shape[1],), dtype))

        def host(theta: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
            given = np.array(theta)
            points = evaluate(model.log_joint, torch.as_tensor(given).to(start).reshape(-1, given.shape[-1]))
            value, gradient = ((-part).cpu().numpy() for part in points[1:])
            return value.reshape(given.shape[:-1]), gradient.reshape(given.shape)

        def both(theta: Any) -> Any:
            return jax.pure_callback(host, shapes, theta, vmap_method="broadcast_all")

        @jax.custom_vjp  # type: ignore[untyped-decorator]
        def potential(theta: Any) -> Any:
            return both(theta)[0]

        potential.defvjp(both, lambda gradient, weight: (weight * gradient,))
        # jax's switch is global: its context manager does not reach into callbacks.
        before = jax.config.jax_enable_x64
        jax.config.update("jax_enable_x64", dtype == np.float64)
        try:
            kernel = infer.NUTS(
                potential_fn=potential, target_accept_prob=self.target_acceptance, max_tree_depth=self.max_tree_depth
            )
            chains = infer.MCMC(
                kernel,
                num_warmup=self.num_warmup,
                num_samples=self.num_draws,
                num_chains=self.num_chains,
                chain_method="vectorized",
                progress_bar=progress,
            )
            first = jax.numpy.asarray(start.cpu().numpy())
            chains.run(
                jax.random.PRNGKey(seed), init_params=first if self.num_chains > 1 else first[0], extra_fields=_FIELDS
            )
            found = np.array(chains.get_samples(group_by_chain=True))
            fields = {name: np.array(value) for name, value in chains.get_extra_fields(group_by_chain=True).items()}
        finally:
            jax.config.update("jax_enable_x64", before)
        return torch.as_tensor(found).to(start), {name: torch.as_tensor(value) for name, value in fields.items()}
