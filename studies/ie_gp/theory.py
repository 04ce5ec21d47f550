"""The lemmas and theorems of Lu et al. (2022) on regret, tried: where they are attained, and where they fail."""

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gp_ensembles.features.fourier import RandomFourierFeatures
from gp_ensembles.filters.states import gaussian_state
from gp_ensembles.filters.textbook import textbook_filter
from gp_ensembles.meta_learners.averaging import BayesianModelAveraging
from gp_ensembles.meta_learners.base import MetaLearner
from gp_ensembles.meta_learners.switching import MarkovSwitching, sticky_transition
from studies.harness.experiment import Choices, Experiment, Size
from studies.harness.trials import Case, run_cases
from studies.ie_gp.bounds import batch_estimate, static_bound, switching_bound
from studies.ie_gp.regret import waves, waves_in_turn
from studies.ie_gp.restarts import restart_bound, restart_mixture, restarted_log_prob

NUM_FEATURES = 50
_LENGTHSCALES = (0.01, 100.0)
_SEGMENTS = 4
_WAVE_SCALES, _WAVE_NOISE = (0.1, 0.316, 1.0), 0.01


def worst_of_lemma_1(num_experts: int, num_features: int, num_rows: int, size: float) -> dict[str, float]:
    """A stream on which the static ensemble loses all that lemma 1 allows.

    The first expert meets its features in turn, so that what it learns of each is worth the same; those of the others
    change their sign with each round, so that they have nothing to learn and their weights vanish.

    Args:
        num_experts: Experts M.
        num_features: Features F.
        num_rows: Rows T, a multiple of F.
        size: The target of all rows, in standard deviations of the noise.

    Example:
        >>> found = worst_of_lemma_1(3, 4, 40, size=30.0)
        >>> round(found["regret"] / found["bound"], 9)
        1.0
    """
    one = torch.ones((), dtype=torch.float64, device="cpu")
    row = torch.arange(num_rows, device="cpu")
    design = torch.diag(one.expand(num_features))[row % num_features]
    sign = 1 - 2.0 * (row // num_features % 2)
    Phi = torch.stack([design, *[sign.unsqueeze(-1) * design] * (num_experts - 1)])
    y = size * one.expand(num_rows)
    log_prob = _mixture(BayesianModelAveraging(), _filtered(Phi, y, 1.0))
    rival = batch_estimate(Phi[0], y, one, one)
    bound = static_bound(rival.weights.square().sum(), one, one, num_features, num_rows, one, num_experts)
    return {"regret": float(rival.log_prob.sum() - log_prob.sum()), "bound": float(bound)}


def worst_of_lemma_2(num_experts: int, num_rows: int, num_switches: int, margin: float = 200.0) -> dict[str, float]:
    """Log densities on which switching loses all that the corrected lemma 2 allows, for M > 2 more than as printed.

    At each row one expert is better than the others by ``margin`` nats, and it is another one after each switch.

    Example:
        >>> found = worst_of_lemma_2(11, 500, 2)
        >>> [round(found[key], 2) for key in ("regret", "bound", "printed bound")]
        [20.04, 20.04, 15.44]
    """
    row = torch.arange(num_rows, device="cpu")
    best = (row * (num_switches + 1) // num_rows) % num_experts
    log_prob = torch.full((num_experts, num_rows), -margin, dtype=torch.float64, device="cpu")
    log_prob[best, row] = 0.0
    stay = 1 - num_switches / (num_rows - 1)
    regret = -float(_mixture(MarkovSwitching(sticky_transition(num_experts, stay)), log_prob).sum())
    bound = switching_bound(num_experts, num_rows, num_switches, stay)
    printed = math.log(num_experts) + num_switches * (math.log(num_rows / num_switches) + 1)  # equation 40
    return {"regret": regret, "bound": bound, "printed bound": printed}


def one_constant(num_rows: int, size: float, stay: float | None = None) -> dict[str, float]:
    r"""The counterexample to theorem 2 on paper: a constant that changes its sign halfway.

    Both experts have the feature 1 and the prior N(0, 1), the noise is 1. What is learned of the first half is wrong in
    the second, and the ensemble loses about :math:`a^2 / 2` nats per row, T times a constant; the bound is of order
    log T.

    Example:
        >>> found = one_constant(200, size=2.0)
        >>> found["SIE-GP"] > 4 * found["theorem 2"], found["restarted"] < found["its bound"]
        (True, True)
    """
    y = torch.full((num_rows,), size, dtype=torch.float64, device="cpu")
    y[num_rows // 2 :] = -size
    return regrets(y.new_ones(2, num_rows, 1), y, [num_rows // 2, num_rows - num_rows // 2], 1.0, stay)


def changing_function(num_rows: int, num_features: int, generator: torch.Generator) -> dict[str, float]:
    """The same with kernels of length scales 0.01 and 100, noise of variance 1, functions of the experts' priors.

    The kernels take turns over four segments, each with new weights; inputs are uniform on [0, 5].
    """
    X = 5 * torch.rand(num_rows, 1, dtype=torch.float64, device="cpu", generator=generator)
    Phi = rbf_features(X, _LENGTHSCALES, num_features, generator)
    lengths = [len(part) for part in torch.tensor_split(X, _SEGMENTS)]
    prepare, y = 0, torch.empty_like(X[:, 0])
    for segment, length in enumerate(lengths):
        rows = slice(prepare, prepare + length)
        weights = torch.randn(num_features, dtype=X.dtype, device="cpu", generator=generator)
        y[rows] = Phi[segment % 2, rows] @ weights
        prepare += length
    y = y + torch.randn(num_rows, dtype=X.dtype, device="cpu", generator=generator)
    return regrets(Phi, y, lengths, 1.0, None)


def turning_waves(num_rows: int, num_features: int, generator: torch.Generator) -> dict[str, float]:
    """The same where sin 2x and sin 3x take turns on the inputs of figure 10, with its noise."""
    X, y = waves_in_turn(num_rows, generator)
    lengths = [len(part) for part in torch.tensor_split(y, _SEGMENTS)]
    return regrets(rbf_features(X, _WAVE_SCALES, num_features, generator), y, lengths, _WAVE_NOISE, None)


def rkhs(num_rows: int, num_features: int, generator: torch.Generator) -> dict[str, float]:
    r"""Theorem 1: regret to a function of an RKHS, and its bound with what is known of the approximation.

    The rival :math:`f = \sum_t \alpha_t k(x_t, \cdot)` is the exact process's estimate from all rows, C the sum of the
    :math:`|\alpha_t|`, ε the largest error of the approximate kernel on the rows. With
    :math:`\theta = \Phi^\top \alpha` one has :math:`|f - \phi^\top \theta| \le \varepsilon C` and
    :math:`\|\theta\|^2 \le \|f\|^2 + \varepsilon C^2`, so to lemma 1 comes
    :math:`\sum_t (|y_t - f(x_t)| \varepsilon C + \varepsilon^2 C^2 / 2) / \sigma^2`. ``weights known`` has the
    approximation's own weights in place of these two inequalities.
    """
    noise, scales = _WAVE_NOISE, _WAVE_SCALES
    X, y = waves(num_rows, generator)
    Phi = rbf_features(X, scales, num_features, generator)
    log_prob = _mixture(BayesianModelAveraging(), _filtered(Phi, y, noise)).sum()
    one = torch.ones((), dtype=X.dtype, device="cpu")
    which = 1
    K = (-0.5 * (X - X.T).square() / scales[which] ** 2).exp()
    alpha = torch.linalg.solve(K + torch.diag(torch.full_like(y, noise)), y)
    f, C = K @ alpha, alpha.abs().sum()
    epsilon = (Phi[which] @ Phi[which].T - K).abs().max()
    theta = Phi[which].T @ alpha
    rival = _normal(y - f, noise).sum()
    norm2 = f @ alpha
    size = one
    lemma = partial(static_bound, prior_variance=one, noise=noise * one, num_features=num_features)
    of_norm = partial(lemma, num_steps=num_rows, feature_norm2=size, num_experts=len(scales))
    apart = (((y - f).abs() * epsilon * C + 0.5 * (epsilon * C) ** 2) / noise).sum()
    known = rival - _normal(y - Phi[which] @ theta, noise).sum()
    spread = float(X.max() - X.min())
    # Rahimi and Recht 2007: P(sup > ε) <= 2^8 (σ_p diam / ε)^2 exp(-D ε^2 / (4 (d + 2))), D the frequencies.
    log_first = 8 * math.log(2) + 2 * math.log(spread / scales[which] / float(epsilon))
    log_failure = log_first - num_features / 2 * float(epsilon) ** 2 / 12
    return {
        "regret": float(rival - log_prob),
        "weights known": float(of_norm(theta.square().sum()) + known),
        "theorem 1": float(of_norm(norm2 + epsilon * C**2) + apart),
        "C": float(C),
        "epsilon": float(epsilon),
        "log failure probability": log_failure,
        "frequencies for 95 %": 12 * (log_first + math.log(20)) / float(epsilon) ** 2,
    }


def rbf_features(X: Tensor, scales: tuple[float, ...], num_features: int, generator: torch.Generator) -> Tensor:
    """Random features (M, T, F) of RBF kernels of unit variance."""
    kernel = RBFKernel(batch_shape=torch.Size([len(scales)])).to(X)
    kernel.lengthscale = X.new_tensor(scales).reshape(-1, 1, 1)
    scaled = ScaleKernel(kernel, batch_shape=torch.Size([len(scales)])).to(X)
    scaled.outputscale = torch.ones_like(scaled.outputscale)
    features = RandomFourierFeatures.from_kernel(scaled, X.shape[-1], num_features, generator=generator)
    with torch.no_grad():
        return features.bind()(X)


def regrets(Phi: Tensor, y: Tensor, lengths: list[int], noise: float, stay: float | None) -> dict[str, float]:
    """Regret of published and of restarted experts to the best fixed function of each segment, and bounds, in nats.

    Args:
        Phi: Features, shape (M, T, F), of norm one at most.
        y: Targets, shape (T,).
        lengths: Rows of each segment.
        noise: Observation variance; the prior variance is one.
        stay: Probability of no switch; what makes the bound of lemma 2 least by default.
    """
    num_experts, num_rows, num_features = Phi.shape
    num_switches = len(lengths) - 1
    stay = 1 - num_switches / (num_rows - 1) if stay is None else stay
    variances = Phi.new_full((num_experts,), noise), Phi.new_ones(num_experts)
    rival = exact = printed = 0.0
    for design, targets in zip(Phi.split(lengths, 1), y.split(lengths), strict=True):
        estimate = batch_estimate(design, targets, *variances)
        best = int(estimate.log_prob.sum(-1).argmax())
        rival += float(estimate.log_prob[best].sum())
        exact += float(estimate.cost[best])
        norm2 = estimate.weights[best].square().sum()
        one = torch.ones_like(norm2)
        printed += float(static_bound(norm2, one, noise * one, num_features, len(targets), one, 1))
    published = _mixture(MarkovSwitching(sticky_transition(num_experts, stay)), _filtered(Phi, y, noise))
    restarted = restart_mixture(restarted_log_prob(Phi, y, noise), stay)
    return {
        "SIE-GP": rival - float(published.sum()),
        "theorem 2": printed + switching_bound(num_experts, num_rows, num_switches, stay),
        "restarted": rival - float(restarted.sum()),
        "its bound": exact + restart_bound(num_experts, num_rows, num_switches, stay),
    }


def _filtered(Phi: Tensor, y: Tensor, noise: float) -> Tensor:
    state = gaussian_state(Phi.new_ones(len(Phi)), Phi.shape[-1])
    return textbook_filter(state, Phi, y.expand(len(Phi), -1), Phi.new_tensor(noise))[1].log_prob


def _mixture(rule: MetaLearner, log_prob: Tensor) -> Tensor:
    return rule.update_block(rule.init(len(log_prob), like=log_prob), log_prob)[1].log_prob


def _normal(error: Tensor, noise: float) -> Tensor:
    return -0.5 * (error.square() / noise + math.log(2 * math.pi * noise))


def _lemma_1(choices: Choices, settings: None) -> str:
    rounds = 4 if choices.max_rows is None else max(1, choices.max_rows // 10)
    cases = {
        f"M = {m}, F = {f}": _fixed(partial(worst_of_lemma_1, m, f, f * rounds, 30.0))
        for m, f in ((2, 2), (11, 10), (11, 50))
    }
    return run_cases(choices, "lemma-1", "Lemma 1: regret in the worst case, nats", cases, {"rounds": rounds})


def _lemma_2(choices: Choices, settings: None) -> str:
    rows = choices.max_rows or 1000
    cases = {
        f"M = {m}, S = {s}": _fixed(partial(worst_of_lemma_2, m, rows, s))
        for m, s in ((2, 3), (7, 3), (11, 3), (11, 9))
    }
    return run_cases(choices, "lemma-2", "Lemma 2: switching regret in the worst case, nats", cases, {"rows": rows})


def _theorem_1(choices: Choices, settings: None) -> str:
    rows = choices.max_rows or 1000
    cases = {f"F = {f}": partial(rkhs, rows, f) for f in (100, 400)}
    title = "Theorem 1: regret to a function of an RKHS, and its bound, nats"
    return run_cases(choices, "theorem-1", title, cases, {"rows": rows})


def _theorem_2(choices: Choices, settings: None) -> str:
    rows = choices.max_rows or 400
    cases: Mapping[str, Case] = {
        "a constant that changes its sign": _a_row(rows, lambda generator: one_constant(rows, 2.0)),
        "kernels that take turns": _a_row(rows, partial(changing_function, rows, NUM_FEATURES)),
        "sin 2x and sin 3x take turns": _a_row(rows, partial(turning_waves, rows, NUM_FEATURES)),
    }
    title = "Theorem 2: regret to the best function of each segment, and bounds, nats per row"
    return run_cases(choices, "theorem-2", title, cases, {"rows": rows, "num_features": NUM_FEATURES})


def _fixed(make: Callable[[], Mapping[str, float]]) -> Case:
    return lambda generator: make()


def _a_row(rows: int, make: Case) -> Case:
    return lambda generator: {key: value / rows for key, value in make(generator).items()}


THEORY = (
    Experiment("lemma-1", "the static bound attained", "One stream, made for it.", _lemma_1, Size(1), Size(1)),
    Experiment("lemma-2", "the switching bound attained", "One stream, made for it.", _lemma_2, Size(1), Size(1)),
    Experiment(
        "theorem-1",
        "regret to a function of an RKHS",
        "sin 2x + sin 3x at normal inputs; rival: the exact process's estimate from all rows.",
        _theorem_1,
        Size(10, 1000),
        Size(2, 200),
    ),
    Experiment(
        "theorem-2",
        "switching regret to fixed functions: a counterexample, and a bound that holds",
        "Rival: the best fixed function of each segment in hindsight; noise and prior variance 1.",
        _theorem_2,
        Size(3, 400),
        Size(1, 200),
    ),
)
