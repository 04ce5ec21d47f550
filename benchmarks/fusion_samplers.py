"""Fusion: seconds per effective draw of the predictive density by batched chains and by NumPyro, and quick inferences.

OMP_NUM_THREADS=1 python -m benchmarks.fusion_samplers [--chains 16] [--draws 150]

NumPyro's part runs where NumPyro is installed (extra `numpyro`), on the same densities written in jax and compiled.

With --samplers: the smallest bulk effective sample size for a second of the processor, R-hat and divergences of the
posteriors of BHS, P-BHS, PoGPE and MoGPE, by HMC and, where it is installed, by NumPyro's no-U-turn sampler.

With --metric: chains of P-BHS on two splits, hyperparameters fixed and sampled, before they had the metric of a Laplace
approximation (diagonal, starts at joint modes) and after.
"""

import argparse
import os
import time
import warnings
from importlib.util import find_spec
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import torch
from torch import Tensor

from gp_ensembles.papers.fusion import (
    BHS,
    HMC,
    MAP,
    PBHS,
    FourierPrior,
    LaplaceApproximation,
    MoGPE,
    PoGPE,
    fit_fusion,
)
from gp_ensembles.papers.fusion.base import FusionModel
from gp_ensembles.papers.fusion.chees import Chains, HMCSettings, sample_hmc
from gp_ensembles.papers.fusion.diagnostics import bulk_ess, mean_ess, rank_rhat
from gp_ensembles.papers.fusion.inference import InferenceMethod
from studies.fusion.nuts import NUTS
from studies.fusion.sets import (
    FusionSplit,
    expert_source,
    made_up_mixture,
    make_priors,
    split_rows,
)


def effective(model: FusionModel, theta: Tensor, split: FusionSplit) -> tuple[float, float]:
    """Effective draws of the log density of test targets (their median) and its negative mean, chains by themselves.

    Chains in different modes do not mix, whatever the sampler: between chains there would be next to none.
    """
    with torch.no_grad():
        scores = torch.stack(
            [
                torch.cat([model.predictive(one[None], split.test_X).log_prob(split.test_y)[None] for one in chain])
                for chain in theta
            ]
        )
    total = sum(mean_ess(chain.unsqueeze(0)) for chain in scores)
    nlpd = -(scores.flatten(0, 1).logsumexp(0) - torch.tensor(scores.shape[0] * scores.shape[1]).log()).mean()
    return float(torch.as_tensor(total).median()), float(nlpd)


def batched(model: FusionModel, chains: int, draws: int) -> tuple[Tensor, float]:
    """Draws of batched chains from MAP starts, and the processor seconds of the sampling phase."""
    generator = torch.Generator().manual_seed(0)
    start = MAP(num_restarts=chains, max_iterations=100).infer(model, generator=generator).theta
    start = start + 0.1 * torch.randn(start.shape, dtype=start.dtype, generator=generator)
    warm = sample_hmc(model.log_joint, start, HMCSettings(num_draws=0, num_warmup=2 * draws), generator=generator)
    started = time.process_time()
    found = sample_hmc(model.log_joint, warm.state, HMCSettings(num_draws=draws, num_warmup=2 * draws))
    return found.theta, time.process_time() - started


def numpyro_chains(model: FusionModel, draws: int) -> tuple[Tensor, float]:
    """The same by NumPyro's no-U-turn sampler: two chains one after the other, trees of depth seven."""
    import jax
    import numpyro
    from jax import numpy as jnp
    from numpyro.infer import MCMC, NUTS

    numpyro.enable_x64()
    bases = {name: jnp.asarray(prior.basis(model.X).numpy()) for name, prior in model.priors.items()}
    y, is_mixture = jnp.asarray(model.y.numpy()), isinstance(model, MoGPE)

    def potential(theta: Any) -> Any:
        values, place = {}, 0
        for name, shape in model.blocks.items():
            size = shape[0] * shape[1]
            values[name] = theta[place : place + size].reshape(shape) @ bases[name]
            place += size
        mean, log_scale = values["mean"], values["log_scale"]
        if is_mixture:
            normal = -0.5 * ((y - mean) * jnp.exp(-log_scale)) ** 2 - log_scale - 0.5 * jnp.log(2 * jnp.pi)
            logits = jnp.concatenate([values["weights"], jnp.zeros_like(mean[:1])])
            pointwise = jax.nn.logsumexp(jax.nn.log_softmax(logits, 0) + normal, 0)
        else:
            log_precision = values["weights"] - jnp.log(mean.shape[0]) - 2 * log_scale
            total = jax.nn.logsumexp(log_precision, 0)
            center = (jnp.exp(log_precision - total) * mean).sum(0)
            pointwise = 0.5 * (total - jnp.log(2 * jnp.pi) - jnp.exp(total) * (y - center) ** 2)
        return 0.5 * (theta**2).sum() - pointwise.sum()

    point = 0.1 * torch.randn(model.num_parameters, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    at = float(model.log_joint(point)) + 0.5 * model.num_parameters * float(torch.tensor(2 * torch.pi).log())
    assert abs(at + float(potential(jnp.asarray(point.numpy())))) < 1e-6 * abs(at), "not the same density"
    kernel = NUTS(potential_fn=potential, max_tree_depth=7)
    sampler = MCMC(
        kernel, num_warmup=2 * draws, num_samples=draws, num_chains=2, chain_method="sequential", progress_bar=False
    )
    start = 0.1 * jax.random.normal(jax.random.PRNGKey(0), (2, model.num_parameters))
    sampler.warmup(jax.random.PRNGKey(1), init_params=start)
    sampler.run(jax.random.PRNGKey(2), init_params=start)  # compiles what sampling needs
    started = time.process_time()
    sampler.run(jax.random.PRNGKey(3), init_params=start)
    took = time.process_time() - started
    return torch.tensor(jax.device_get(sampler.get_samples(group_by_chain=True)).copy()), took


def report(name: str, model: FusionModel, found: tuple[Tensor, float], split: FusionSplit) -> float:
    """A line, and the seconds per effective draw."""
    theta, took = found
    draws, nlpd = effective(model, theta, split)
    print(f"{name:28} {took:6.1f} s  {draws:7.0f} effective draws  {took / draws:.4f} s each  NLPD {nlpd:.3f}")
    return took / draws


def metric(draws: int, splits: list[int]) -> None:
    """R-hat, effective draws and gradients of chains of P-BHS, before and after."""
    for number in splits:
        split = split_rows(made_up_mixture(1.0, 1000, 0), 0, number)
        frequencies = make_priors(split.X, 30, 0, 0).weight.frequencies
        experts = expert_source(split, 0, 0)(3)
        for stddev in (None, 0.5):
            prior = FourierPrior(frequencies, 0.5, prior_stddev=stddev)
            model = PBHS(experts.X, experts.y, experts.predictions, prior)
            name = f"split {number}, hyperparameters {'fixed' if stddev is None else 'sampled'}"
            settings = HMCSettings(draws, draws)
            generator = torch.Generator().manual_seed(0)
            start = MAP(16, 100).infer(model, generator=generator).theta
            noise = torch.randn(start.shape, dtype=start.dtype, generator=generator)
            before = sample_hmc(
                model.log_joint, start + 0.1 * model.prior_stddev * noise, settings, generator=generator
            )
            mixing(f"{name}, before", model, before)
            found = HMC(settings=settings).infer(model, generator=torch.Generator().manual_seed(0)).chains
            assert found is not None
            mixing(f"{name}, after", model, found)


def samplers(draws: int, num_rows: int, models: list[str]) -> None:
    """A line for each model and sampler."""
    split = split_rows(made_up_mixture(1.0, num_rows, 0), 0, 0)
    priors = make_priors(split.X, 30, 0, 0)
    stacked = expert_source(split, 0, 0)(3)
    made: dict[str, FusionModel] = {
        "BHS": BHS(stacked.X, stacked.y, stacked.predictions, priors.weight),
        "P-BHS": PBHS(stacked.X, stacked.y, stacked.predictions, priors.weight),
        "PoGPE": PoGPE(split.X, split.y, 3, *priors),
        "MoGPE": MoGPE(split.X, split.y, 3, *priors),
    }
    kinds: dict[str, InferenceMethod] = {
        "HMC": HMC(settings=HMCSettings(draws, draws)),
    }
    if find_spec("numpyro") is not None:
        kinds["NumPyro"] = NUTS(4, draws, draws)
    for name in models:
        for kind, inference in kinds.items():
            started = time.process_time()
            found = inference.infer(made[name], generator=torch.Generator().manual_seed(0)).chains
            took = time.process_time() - started
            assert found is not None
            speed(f"{name}, {num_rows} rows, {kind}", made[name], found, took)


@torch.no_grad()
def speed(name: str, model: FusionModel, chains: Chains, took: float) -> None:
    """A line: the smallest bulk effective sample size of the log joint and of 64 rows' log densities, for a second.

    Sizes are summed over the chains, each by itself: chains in different modes do not lower them.
    """
    rows = torch.stack([model.log_likelihood(chain) for chain in chains.theta])[..., :: max(len(model.y) // 64, 1)]
    looked_at = torch.cat([rows, chains.log_density.unsqueeze(-1)], -1)
    size = float(torch.stack([bulk_ess(chain.unsqueeze(0)) for chain in looked_at]).nansum(0).min())
    print(
        f"{name}: {took:.1f} s, R-hat {float(rank_rhat(looked_at).max()):.3f}, smallest bulk ESS {size:.0f}, "
        f"{size / took:.1f} each second, {int(chains.num_steps.sum())} gradients, {int(chains.divergent.sum())} "
        "divergences",
        flush=True,
    )


@torch.no_grad()
def mixing(name: str, model: FusionModel, chains: Chains) -> None:
    """A line about chains: the largest R-hat and the median effective draws of the log densities of 64 rows."""
    rows = torch.stack([model.log_likelihood(chain) for chain in chains.theta])[..., :: max(len(model.y) // 64, 1)]
    rhat = max(float(rank_rhat(rows).max()), float(rank_rhat(chains.log_density)))
    effective = float(torch.stack([mean_ess(chain.unsqueeze(0)) for chain in rows]).sum(0).median())
    steps, lost = int(chains.num_steps.sum()), int(chains.divergent.sum())
    print(f"{name}: R-hat {rhat:.3f}, {effective:.0f} effective draws, {steps} gradients, "
          f"{effective / steps:.2f} each, {lost} divergences", flush=True)  # fmt: skip
    for block, part in model.unpack(chains.theta).items():
        if block.endswith("_hyperparameters"):
            print(f"    R-hat of {block}: {[round(value, 3) for value in rank_rhat(part).tolist()]}", flush=True)


def main() -> None:
    """All parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=16)
    parser.add_argument("--draws", type=int, default=150)
    parser.add_argument("--samplers", action="store_true")
    parser.add_argument("--num-rows", type=int, default=1000)
    parser.add_argument("--models", nargs="+", default=["BHS", "P-BHS", "PoGPE", "MoGPE"])
    parser.add_argument("--metric", action="store_true")
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if arguments.samplers:
        samplers(arguments.draws, arguments.num_rows, arguments.models)
        return
    if arguments.metric:
        metric(arguments.draws, arguments.splits)
        return
    split = split_rows(made_up_mixture(1.0, 1000, 0), 0, 0)
    priors = make_priors(split.X, 30, 0, 0)
    for kind in (MoGPE, PoGPE):
        model = kind(split.X, split.y, 3, *priors)
        ours = report(
            f"{kind.__name__}, batched chains", model, batched(model, arguments.chains, arguments.draws), split
        )
        if find_spec("numpyro") is not None:
            theirs = report(f"{kind.__name__}, NumPyro", model, numpyro_chains(model, arguments.draws), split)
            print(f"{kind.__name__}: {ours / theirs:.2f} of NumPyro's seconds per effective draw")
    stacked = expert_source(split, 0, 0)(3)
    stacking = PBHS(stacked.X, stacked.y, stacked.predictions, priors.weight)
    for name, inference in {
        "MAP and Laplace": LaplaceApproximation(),
        "chains": HMC(settings=HMCSettings(num_draws=150, num_warmup=150)),
    }.items():
        started = time.process_time()
        fitted = fit_fusion(stacking, inference, generator=torch.Generator().manual_seed(0))
        took = time.process_time() - started
        nlpd = -float(fitted.predict(split.test_X, stacked.test).log_prob(split.test_y).mean())
        print(f"P-BHS by {name}: {took:.2f} s, NLPD {nlpd:.3f}")


if __name__ == "__main__":
    main()
