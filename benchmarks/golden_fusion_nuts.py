"""Reference posteriors of two small fusion models by NumPyro's NUTS, from log densities written in jax.

Run with NumPyro installed: ``python -m benchmarks.golden_fusion_nuts`` writes ``tests/golden/fusion_nuts.npz``: the
data, the frequencies, posterior means and standard deviations of some quantities, and their Monte Carlo errors.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

NUM_EXPERTS, NUM_FREQUENCIES, NUM_ROWS = 2, 3, 30


def data(rng):
    x = np.sort(rng.uniform(-1, 1, NUM_ROWS))
    y = np.sin(4 * x) + (0.3 + 0.3 * (x > 0)) * rng.normal(size=NUM_ROWS)
    x_new = np.linspace(-1.1, 1.1, 8)
    mean = np.stack([np.sin(4 * x) + 0.4 * x, np.zeros_like(x)])
    mean_new = np.stack([np.sin(4 * x_new) + 0.4 * x_new, np.zeros_like(x_new)])
    return x, y, x_new, mean, mean_new


def features(x, frequencies, lengthscale):
    angles = np.outer(frequencies / lengthscale, x)
    return np.stack([np.cos(angles), np.sin(angles)], 1).reshape(-1, len(x)) / np.sqrt(len(frequencies))


def bhs(phi, log_density):
    z = numpyro.sample("z", dist.Normal(0, 1).expand([NUM_EXPERTS - 1, phi.shape[0]]).to_event(2))
    logits = jnp.concatenate([z @ phi, jnp.zeros((1, phi.shape[1]))])
    pointwise = jax.nn.logsumexp(jax.nn.log_softmax(logits, 0) + log_density, 0)
    numpyro.factor("likelihood", pointwise.sum())
    numpyro.deterministic("log_likelihood", pointwise.sum())


def pool(z, phis):
    means = z["mean"] @ phis["mean"]
    log_weights = z["weights"] @ phis["weights"] - jnp.log(NUM_EXPERTS)
    precisions = jnp.exp(log_weights - 2 * (z["log_scale"] @ phis["log_scale"]))
    total = precisions.sum(-2)
    return (precisions * means).sum(-2) / total, 1 / total


def pogpe(phis, y):
    z = {
        name: numpyro.sample(name, dist.Normal(0, 1).expand([NUM_EXPERTS, phi.shape[0]]).to_event(2))
        for name, phi in phis.items()
    }
    mean, variance = pool(z, phis)
    value = dist.Normal(mean, jnp.sqrt(variance)).log_prob(y).sum()
    numpyro.factor("likelihood", value)
    numpyro.deterministic("log_likelihood", value)


def run(model, *args):
    kernel = NUTS(model, target_accept_prob=0.9)
    mcmc = MCMC(kernel, num_warmup=2000, num_samples=8000, num_chains=4, chain_method="vectorized", progress_bar=False)
    mcmc.run(jax.random.PRNGKey(0), *args)
    return {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}


def summary(name, draws, content):
    """Mean, standard deviation and Monte Carlo error of the mean of draws (chains, draws, ...)."""
    size = effective_sample_size(draws)
    print(name, "R-hat", np.max(split_gelman_rubin(draws)), "ESS", np.min(size))
    content[f"{name}_mean"] = draws.mean((0, 1))
    content[f"{name}_sd"] = draws.std((0, 1))
    content[f"{name}_error"] = draws.std((0, 1)) / np.sqrt(size)


def main():
    numpyro.enable_x64()
    rng = np.random.default_rng(5)
    x, y, x_new, expert_mean, expert_mean_new = data(rng)
    variances = np.array([[0.05], [0.5]])
    content = {"x": x, "y": y, "x_new": x_new, "expert_mean": expert_mean, "expert_mean_new": expert_mean_new}
    content["expert_variance"] = np.broadcast_to(variances, expert_mean.shape).copy()
    frequencies = {name: rng.normal(size=NUM_FREQUENCIES) for name in ("mean", "log_scale", "weights")}
    scales = {"mean": 0.4, "log_scale": 0.8, "weights": 0.5}
    for name, value in frequencies.items():
        content[f"frequencies_{name}"], content[f"lengthscale_{name}"] = value, np.asarray(scales[name])
    phis = {name: features(x, frequencies[name], scales[name]) for name in frequencies}
    phis_new = {name: features(x_new, frequencies[name], scales[name]) for name in frequencies}

    log_density = -0.5 * (y - expert_mean) ** 2 / variances - 0.5 * np.log(2 * np.pi * variances)
    draws = run(bhs, phis["weights"], log_density)
    summary("bhs_log_likelihood", draws["log_likelihood"], content)
    logit = (draws["z"] @ phis_new["weights"])[:, :, 0]
    summary("bhs_weight", 1 / (1 + np.exp(-logit)), content)

    draws = run(pogpe, phis, y)
    summary("pogpe_log_likelihood", draws["log_likelihood"], content)
    mean, variance = pool(draws, phis_new)
    summary("pogpe_predictive_mean", np.asarray(mean), content)
    summary("pogpe_log_variance", np.log(np.asarray(variance)), content)
    np.savez_compressed(Path(__file__).resolve().parents[1] / "tests" / "golden" / "fusion_nuts.npz", **content)


if __name__ == "__main__":
    main()
