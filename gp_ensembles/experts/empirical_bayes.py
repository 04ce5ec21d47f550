"""Empirical Bayes: hyperparameters that maximize the evidence of the first rows, for all experts at once."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from gpytorch.priors import Prior
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.parameters import get_vectors, gradient_vectors, set_vectors_, trainable
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.minimize import minimize

_SHRINK = 0.7  # share of experts still running below which the others are no longer evaluated


class LBFGS(NamedTuple):
    """Quasi-Newton with a line search for every expert: the default.

    Attributes:
        max_iterations: Most iterations per expert.
        gradient_tolerance: Stop when no entry of the gradient, in nats per row, exceeds it.
        loss_tolerance: Stop when an iteration gains less than this share of the loss.
    """

    max_iterations: int = 200
    gradient_tolerance: float = 1e-5
    loss_tolerance: float = 1e-7


class Adam(NamedTuple):
    """Plain gradient steps, as in the papers.

    Attributes:
        num_steps: Number of steps.
        learning_rate: Step size in the unconstrained space.
    """

    num_steps: int = 500
    learning_rate: float = 1e-2


class EvidenceFit(NamedTuple):
    """Result of a fit, per expert.

    Attributes:
        log_evidence: Log evidence (plus log priors, if any) at the end, in nats, shape (M,).
        num_iterations: Iterations taken, shape (M,).
        converged: Whether a tolerance was met, shape (M,).
    """

    log_evidence: Tensor
    num_iterations: Tensor
    converged: Tensor


def log_posterior(expert: Expert, X: Tensor, y: Tensor) -> Tensor:
    """Log evidence plus the log priors registered on GPyTorch modules, per expert, shape (M,)."""
    seen = _seen(y)
    return expert.log_evidence(X[seen], y[seen]).reshape(expert.num_experts) + log_priors(expert)


def log_priors(expert: Expert) -> Tensor | float:
    """Log densities of the priors registered on GPyTorch modules, per expert, shape (M,); zero if there is none."""
    value: Tensor | float = 0.0
    for module in expert.modules():
        for _, (prior, closure, _) in getattr(module, "_priors", {}).items():
            value = value + _log_prior(prior, closure(module), expert.num_experts)
    return value


def fit_empirical_bayes(
    expert: Expert,
    X: Tensor,
    y: Tensor,
    method: LBFGS | Adam = LBFGS(),  # noqa: B008 (an immutable tuple)
    *,
    start_precision: float = 0.0,
    progress: bool = False,
) -> EvidenceFit:
    """Fit the hyperparameters of every expert in a batch, each on its own, in place.

    Type-II maximum likelihood in weight space (MacKay 1992); with GPyTorch priors registered it is the
    maximum a posteriori. An expert never ends below where it started. If interrupted, the expert keeps
    the hyperparameters it had before the call.

    Args:
        expert: Batch of experts; its trainable parameters change.
        X: Warm-up inputs, shape (N, D).
        y: Warm-up targets, shape (N,); NaN rows are left out.
        method: :class:`LBFGS` or :class:`Adam` with its settings.
        start_precision: Precision of a Gaussian prior around the starting values in the unconstrained space. A
            small one keeps hyperparameters that the data do not determine from running away, and starts apart.
        progress: Show a progress bar with the mean log evidence per row.

    Returns:
        The log evidence reached, iterations and convergence, per expert.

    Raises:
        ValueError: If X or y has the wrong shape, no target is observed, or a parameter is shared.
        NumericalError: If the evidence of an expert cannot be computed where it starts.

    Example:
        >>> import torch
        >>> from gp_ensembles.experts.gaussian import GaussianExpert
        >>> from gp_ensembles.features import LinearFeatures
        >>> generator = torch.Generator().manual_seed(0)
        >>> X = torch.randn(50, 1, generator=generator, dtype=torch.float64)
        >>> y = 2 * X.squeeze(-1) + 0.1 * torch.randn(50, generator=generator, dtype=torch.float64)
        >>> expert = GaussianExpert(LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64)))
        >>> fit = fit_empirical_bayes(expert, X, y)
        >>> bool(fit.converged), round(expert.likelihood.noise.sqrt().item(), 1)
        (True, 0.1)
    """
    _check(expert, X, y)
    start = get_vectors(expert)
    objective = _Objective(expert, X, y, start_precision)
    with torch.no_grad():
        initial = objective.value()
    if not bool(torch.isfinite(initial).all()):
        worst = int((~torch.isfinite(initial)).int().argmax())
        raise NumericalError(
            f"the evidence of expert {worst} cannot be computed at its starting hyperparameters; start with a larger "
            f"noise or a smaller outputscale"
        )
    try:
        if isinstance(method, LBFGS):
            vectors, iterations, converged = _run_lbfgs(objective, method, progress)
        else:
            vectors, iterations, converged = _run_adam(objective, method, progress)
        set_vectors_(expert, vectors)
        with torch.no_grad():
            final = objective.value()
        better = final >= initial
        set_vectors_(expert, torch.where(better.unsqueeze(-1), vectors, start))
    except BaseException:
        set_vectors_(expert, start)
        raise
    return EvidenceFit(torch.where(better, final, initial), iterations, converged)


def gradient_ascent(
    expert: Expert, evidence: Callable[[], Tensor], method: LBFGS, start_precision: float, num_rows: int
) -> Tensor:
    """Hyperparameters (M, P) after a few ascent steps on each expert's log posterior, never worse than the current."""
    start = get_vectors(expert)

    def loss(points: Tensor, problems: Tensor) -> tuple[Tensor, Tensor]:
        vectors = start.clone()
        vectors[problems] = points.to(start)
        set_vectors_(expert, vectors)
        value = evidence().reshape(-1) + log_priors(expert)
        usable = torch.isfinite(value)
        gradient = gradient_vectors(expert, torch.where(usable, value, 0.0).sum())
        step = vectors - start
        gradient = (start_precision * step - gradient) / num_rows
        usable = usable & torch.isfinite(gradient).all(-1)
        value = (0.5 * start_precision * step.square().sum(-1) - value.detach()) / num_rows
        value, gradient = torch.where(usable, value, torch.inf), torch.where(usable.unsqueeze(-1), gradient, 0.0)
        return value[problems].to(points), gradient[problems].to(points)

    with torch.inference_mode(False), torch.enable_grad():
        every = torch.arange(len(start), device=start.device)
        try:
            good = loss(start, every)[0].isfinite().nonzero().squeeze(-1)
            if not good.numel():
                return start
            found = minimize(
                lambda points, problems: loss(points, good[problems.to(good.device)]),
                start[good].double(),
                max_iterations=method.max_iterations,
                gradient_tolerance=method.gradient_tolerance,
                loss_tolerance=method.loss_tolerance,
            )
        except RuntimeError:  # of a kernel or of a factorization: the start stays
            return start
    return start.index_copy(0, good, found.point.to(start))


class _Objective:
    """The log posterior of a batch of experts at their current hyperparameters."""

    def __init__(self, expert: Expert, X: Tensor, y: Tensor, start_precision: float) -> None:
        self.expert, self._X, self._y = expert, X, y
        self._start = get_vectors(expert)
        self._start_precision = start_precision
        self._num_rows = int(_seen(y).sum())

    def take(self, members: list[int]) -> "_Objective":
        """The same for some of the experts, on copies of them."""
        index = torch.tensor(members, device="cpu")
        part = _Objective(self.expert.take(index), self._X, self._y, self._start_precision)
        part._start = self._start[index.to(self._start.device)]
        return part

    def value(self) -> Tensor:
        """Log posterior in nats, shape (M,); NaN where it cannot be computed."""
        distance = (get_vectors(self.expert) - self._start).square().sum(-1)
        return log_posterior(self.expert, self._X, self._y) - 0.5 * self._start_precision * distance

    def loss(self) -> tuple[Tensor, Tensor]:
        """Negative log posterior per row and its gradient, (M,) and (M, P); infinite where it cannot be computed."""
        value = self.value()
        usable = torch.isfinite(value)
        gradient = gradient_vectors(self.expert, torch.where(usable, value, 0.0).sum())
        gradient = gradient - self._start_precision * (get_vectors(self.expert) - self._start)
        usable = usable & torch.isfinite(gradient).all(-1)
        loss = torch.where(usable, -value.detach() / self._num_rows, torch.inf)
        return loss, torch.where(usable.unsqueeze(-1), -gradient / self._num_rows, 0.0)


def _run_lbfgs(objective: _Objective, method: LBFGS, progress: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Minimize in double precision on the processor, evaluate in the expert's own on its device."""
    start = get_vectors(objective.expert)
    bar = tqdm(desc="empirical Bayes", unit="evaluation", disable=not progress, leave=False)
    running, members = objective, list(range(len(start)))

    def evaluate(points: Tensor, problems: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal running, members
        wanted = problems.tolist()
        if len(wanted) <= _SHRINK * len(members):  # leave the converged ones behind
            running, members = objective.take(wanted), wanted
        vectors = get_vectors(running.expert)
        rows = [members.index(m) for m in wanted]
        vectors[rows] = points.to(vectors)
        set_vectors_(running.expert, vectors)
        value, gradient = running.loss()
        bar.update()
        bar.set_postfix(log_evidence_per_row=f"{-float(value.mean()):.4f}", active=len(wanted))
        return value[rows].to(points), gradient[rows].to(points)

    with bar:
        found = minimize(
            evaluate,
            start.double().cpu(),
            max_iterations=method.max_iterations,
            gradient_tolerance=method.gradient_tolerance,
            loss_tolerance=method.loss_tolerance,
        )
    return found.point.to(start), found.num_iterations.to(start.device), found.converged.to(start.device)


def _run_adam(objective: _Objective, method: Adam, progress: bool) -> tuple[Tensor, Tensor, Tensor]:
    expert = objective.expert
    parameters = list(trainable(expert).values())
    optimizer = torch.optim.Adam(parameters, lr=method.learning_rate)
    best = get_vectors(expert)
    best_loss = best.new_full((expert.num_experts,), torch.inf)
    for _ in tqdm(range(method.num_steps), desc="empirical Bayes", disable=not progress, leave=False):
        current = get_vectors(expert)
        value, gradient = objective.loss()
        improved = value < best_loss
        best = torch.where(improved.unsqueeze(-1), current, best)
        best_loss = torch.where(improved, value, best_loss)
        start = 0
        for parameter in parameters:
            width = parameter.numel() // expert.num_experts
            parameter.grad = gradient[:, start : start + width].reshape(parameter.shape).clone()
            start += width
        optimizer.step()
    for parameter in parameters:
        parameter.grad = None
    steps = torch.full((expert.num_experts,), method.num_steps, device=best.device, dtype=torch.int64)
    return best, steps, torch.zeros_like(steps, dtype=torch.bool)


def _seen(y: Tensor) -> Tensor:
    """Rows whose targets are all observed, shape (N,)."""
    seen = ~torch.isnan(y)
    return seen if y.ndim == 1 else seen.all(-1)


def _log_prior(prior: Prior, value: Tensor, num_experts: int) -> Tensor:
    density: Tensor = prior.log_prob(value).reshape(num_experts, -1).sum(-1)
    return density


def _check(expert: Expert, X: Tensor, y: Tensor) -> None:
    expert.features.check_inputs(X)
    if X.ndim != 2 or y.ndim not in (1, 2) or y.shape[:1] != X.shape[:1]:
        raise ValueError(f"X must be (N, D) and y (N,) with the same N, got {tuple(X.shape)} and {tuple(y.shape)}")
    if y.dtype != X.dtype:
        raise TypeError(f"X is {X.dtype} and y is {y.dtype}; give both one dtype")
    if not bool(_seen(y).any()):
        raise ValueError("no target is observed; there is nothing to fit to")
    expert.check_targets(y)
