"""Empirical Bayes: hyperparameters that maximize the evidence of the first rows, for all experts at once.

Trainable hyperparameters of a batch of experts form a matrix in the unconstrained space, one row per expert. Around
each optimum more experts are sampled, by a Laplace approximation of the evidence or by Gaussian perturbation.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeGuard, TypeVar

import torch
from gpytorch.kernels import ScaleKernel
from torch import Tensor, nn

from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.features.compose import SelectColumns
from gp_ensembles.features.fourier import RandomFourierFeatures
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.draws import generator_device
from gp_ensembles.numerics.minimize import CurvaturePairs, minimize
from gp_ensembles.numerics.profiled_evidence import best_variances, profile

_WORTH = 0.1  # nats per row by which another start must win against one that explains something
_SHORTER = 2.0, 4.0  # divisors of further starts if nothing is found
_BLOCKS = 6  # blocks of consecutive rows: neighbors show short length scales, spread blocks cover the warm-up
_SHRINK = 0.7  # once less than this share of experts is running, the others are no longer evaluated
_ABOVE = 1.2  # smallest starting length scale relative to its bound: at the bound the gradient vanishes
_Chosen = TypeVar("_Chosen", bound=tuple[Any, ...] | Tensor)
_TRAINED = frozenset({"features.kernel.raw_outputscale", "likelihood.noise_covar.raw_noise"})  # for fixed kernels


class LBFGS(NamedTuple):
    """Quasi-Newton method with a line search per expert; the default.

    Attributes:
        max_iterations: Maximum number of iterations per expert.
        gradient_tolerance: Stop when no entry of the gradient, in nats per row, exceeds it.
        loss_tolerance: Stop when an iteration improves the loss by less than this share.
    """

    max_iterations: int = 200
    gradient_tolerance: float = 1e-5
    loss_tolerance: float = 1e-7


_FIRST_SEARCH = LBFGS(max_iterations=15, loss_tolerance=1e-4)  # from each of several starting points
_MEMORY = 20  # steps in memory: with many columns, fewer evaluations than with ten


class EvidenceFit(NamedTuple):
    """Result of a fit, per expert.

    Attributes:
        log_evidence: Final log evidence (plus log priors, if any), in nats, shape (M,).
        num_iterations: Iterations of the last search, shape (M,).
        converged: Whether a tolerance was met, shape (M,).
        center: Center of the Gaussian prior at the selected start, in the unconstrained space, shape (M, P).
        pairs: Curvature pairs of L-BFGS.
    """

    log_evidence: Tensor
    num_iterations: Tensor
    converged: Tensor
    center: Tensor
    pairs: CurvaturePairs


def trainable(expert: Expert) -> dict[str, nn.Parameter]:
    r"""Trainable parameters by name; each has the leading batch shape of the expert, so experts train independently."""
    found = {name: value for name, value in expert.named_parameters() if value.requires_grad}
    if not found:
        raise ValueError("the expert has no trainable hyperparameters; set requires_grad on those to fit")
    batch_shape = expert.batch_shape
    for name, value in found.items():
        if value.shape[: len(batch_shape)] != batch_shape:
            raise ValueError(
                f"hyperparameter {name} of shape {tuple(value.shape)} is shared by the {expert.num_experts} experts of "
                f"a batch and cannot be fitted per expert; give it the batch shape {tuple(batch_shape)}"
            )
    return found


def get_vectors(expert: Expert) -> Tensor:
    r"""Unconstrained hyperparameters, shape (M, P), a copy."""
    parts = [value.detach().reshape(expert.num_experts, -1) for value in trainable(expert).values()]
    return torch.cat(parts, dim=-1)


def set_vectors_(expert: Expert, vectors: Tensor) -> None:
    """Write unconstrained hyperparameters, shape (M, P), into the expert."""
    with torch.no_grad():
        start = 0
        for value in trainable(expert).values():
            width = value.numel() // expert.num_experts
            value.copy_(vectors[:, start : start + width].reshape(value.shape))
            start += width


def gradient_vectors(expert: Expert, total: Tensor, create_graph: bool = False) -> Tensor:
    """Gradient of a sum over experts with respect to each expert's hyperparameters, shape (M, P)."""
    parameters = list(trainable(expert).values())
    gradients = torch.autograd.grad(
        total, parameters, create_graph=create_graph, retain_graph=True, materialize_grads=True
    )
    return torch.cat([g.reshape(expert.num_experts, -1) for g in gradients], dim=-1)


def log_posterior(expert: Expert, X: Tensor, y: Tensor) -> Tensor:
    """Log evidence plus the log priors registered on GPyTorch modules, per expert, shape (M,)."""
    return _evidence(expert, X, y) + log_priors(expert)


def log_priors(expert: Expert) -> Tensor | float:
    """Log densities of priors registered on GPyTorch modules, per expert, shape (M,); zero if there are none."""
    value: Tensor | float = 0.0
    for module in expert.modules():
        for _, (prior, closure, _) in getattr(module, "_priors", {}).items():
            value = value + prior.log_prob(closure(module)).reshape(expert.num_experts, -1).sum(-1)
    return value


def fit_empirical_bayes(
    expert: Expert,
    X: Tensor,
    y: Tensor,
    method: LBFGS = LBFGS(),  # noqa: B008 (an immutable tuple)
    *,
    start_precision: float = 0.0,
    progress: bool = False,
    length_scales: Sequence[Tensor] = (),
    before: EvidenceFit | None = None,
) -> EvidenceFit:
    """Fit the hyperparameters of every expert in a batch independently, in place.

    Type-II maximum likelihood in weight space (MacKay 1992), or, with registered GPyTorch priors,
    maximum a posteriori. The result is never worse than the start. If interrupted, the expert keeps the
    hyperparameters it had before the call.

    Args:
        expert: Batch of experts; its trainable parameters change.
        X: Warm-up inputs, shape (N, D).
        y: Warm-up targets, shape (N,); NaN rows are left out.
        method: Settings of the optimizer.
        start_precision: Precision of a Gaussian prior around the starting values in the unconstrained space. A
            small value keeps hyperparameters that the data do not determine from diverging, and starts distinct.
        progress: Show a progress bar with the mean log evidence per row.
        length_scales: Further starts: length scales of the first inputs, shape (D,) each. The search continues from the
            best one after fifteen steps of L-BFGS each, if it is better than the default by 0.1 nats per row.
        before: A previous search, as by :func:`search_starts`, to continue, with its prior and curvature.

    Returns:
        The log evidence reached, iterations and convergence, per expert.

    Raises:
        ValueError: If X or y has the wrong shape, no target is observed, or a parameter is shared.
        NumericalError: If the evidence of an expert cannot be computed at its starting point.

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
    X, y, start = X[_seen(y)], y[_seen(y)], get_vectors(expert)
    try:
        if length_scales:
            options: Any = {"start_precision": start_precision, "progress": progress, "before": before}
            most = method.max_iterations
            before = search_starts(expert, X, y, length_scales, worth=_WORTH, most_steps=most, **options)
        return _fit(expert, X, y, method, start_precision, progress, before)
    except BaseException:
        set_vectors_(expert, start)
        raise


def search_starts(
    expert: Expert,
    X: Tensor,
    y: Tensor,
    length_scales: Sequence[Tensor],
    *,
    start_precision: float = 0.0,
    progress: bool = False,
    num_rows: int | None = None,
    worth: float = 0.0,
    most_steps: int = 15,
    before: EvidenceFit | None = None,
) -> EvidenceFit:
    """Take at most fifteen steps of L-BFGS from each of several starts, and keep the best result.

    If the best explains nothing, the further starts are tried again at a half and a quarter: few random features cover
    fewer frequencies than the exact process with these length scales. With more rows than ``num_rows`` the steps
    use this many of them, in six blocks of consecutive rows. A further start must be ahead by ``worth`` nats per
    row. All rows have targets. Other arguments and errors are as in :func:`fit_empirical_bayes`, which continues
    from here.
    """
    first = _FIRST_SEARCH._replace(max_iterations=min(most_steps, _FIRST_SEARCH.max_iterations))
    start, missing = get_vectors(expert), torch.nan * X.new_empty(X.shape[1])
    rows = slice(None) if num_rows is None or len(y) <= num_rows else _consecutive(y, num_rows)
    best, found, pull = start, None, start_precision * len(y[rows]) / len(y)  # as strong as for all rows
    something = len(y) * (_WORTH - 0.5 - 0.5 * (2 * torch.pi * y.square().mean()).log())  # more than pure noise
    shorter = [scales / share for share in _SHORTER for scales in length_scales] if expert.traits.is_real else []
    for number, scales in enumerate((missing, *length_scales, *shorter)):
        if number > len(length_scales) and found is not None and bool((found.log_evidence > something).all()):
            break
        set_vectors_(expert, start)
        _set_length_scales_(expert, torch.cat([scales, missing[len(scales) :]]))
        if found is not None and torch.equal(get_vectors(expert), start):
            continue
        try:
            fit = _fit(expert, X[rows], y[rows], first, pull, progress, before)
        except NumericalError:
            if found is None:
                raise
            continue
        if not isinstance(rows, slice):
            with torch.no_grad():
                fit = fit._replace(log_evidence=log_posterior(expert, X, y))
                fit = fit._replace(log_evidence=torch.where(fit.log_evidence.isfinite(), fit.log_evidence, -torch.inf))
        is_better = fit.log_evidence > (-torch.inf if found is None else found.log_evidence + worth * len(y))
        best = _chosen(is_better, get_vectors(expert), best)
        found = _chosen(is_better, fit, fit if found is None else found)
    set_vectors_(expert, best)
    assert found is not None
    return found


def _chosen(is_first: Tensor, first: _Chosen, second: _Chosen) -> _Chosen:
    """Select rows of one tensor or another, or of tuples of tensors, by flags (M,)."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        found: Any = torch.where(is_first.to(first.device).reshape(-1, *[1] * (first.ndim - 1)), first, second)
        return found  # type: ignore[no-any-return]
    return type(first)(*(_chosen(is_first, *pair) for pair in zip(first, second, strict=True)))


def _consecutive(y: Tensor, num_rows: int) -> Tensor:
    """Indices of this many rows of y (N,), in evenly spaced blocks of consecutive rows."""
    size = num_rows // _BLOCKS
    starts = torch.linspace(0, len(y) - size, _BLOCKS, dtype=torch.float64, device=y.device).round().long()
    return (starts.unsqueeze(-1) + torch.arange(size, device=y.device)).flatten()


def _set_length_scales_(module: nn.Module, scales: Tensor) -> None:
    """Write length scales (D,) into kernels and bumps of all these inputs; NaN leaves one unchanged."""
    if isinstance(module, SelectColumns):
        scales = scales[module.columns]
    raw = dict(module.named_parameters(recurse=False)).get("raw_lengthscale")
    if raw is not None and raw.requires_grad and raw.shape[-1] == len(scales):
        constraint: Any = getattr(module, "raw_lengthscale_constraint", None) or module.lengthscale_constraint
        with torch.no_grad():
            inside = scales.to(raw).clamp_min(_ABOVE * constraint.lower_bound)
            changed = constraint.inverse_transform(inside).expand_as(raw)
            raw.copy_(torch.where(scales.isnan(), raw, changed))
    for child in module.children():
        _set_length_scales_(child, scales)


def _fit(
    expert: Expert, X: Tensor, y: Tensor, method: LBFGS, pull: float, progress: bool, before: EvidenceFit | None
) -> EvidenceFit:
    """:func:`fit_empirical_bayes` from the experts' current hyperparameters."""
    start, num_rows = get_vectors(expert), len(y)
    center = start if before is None else before.center
    running, members = expert, list(range(len(start)))
    is_first = True

    def evaluate(points: Tensor, problems: Tensor) -> tuple[Tensor, Tensor]:
        """In the expert's own dtype, on its device."""
        nonlocal running, members, is_first
        wanted = problems.tolist()
        if len(wanted) <= _SHRINK * len(members):  # drop the converged ones
            running, members = expert.take(torch.tensor(wanted, device="cpu")), wanted
        vectors, rows = get_vectors(running), [members.index(m) for m in wanted]
        vectors[rows] = points.to(vectors)
        set_vectors_(running, vectors)
        value, gradient = _loss(running, _evidence(running, X, y), center[members], pull, num_rows)
        if is_first and not bool(value.isfinite().all()):
            raise NumericalError(
                f"the evidence of expert {int((~value.isfinite()).int().argmax())} cannot be computed at its starting "
                f"hyperparameters; start with a larger noise or a smaller outputscale"
            )
        is_first = False
        return value[rows].to(points), gradient[rows].to(points)

    options = {**method._asdict(), "memory": _MEMORY, "pairs": before and before.pairs}
    found = minimize(evaluate, start.double().cpu(), **options, progress="empirical Bayes" if progress else None)
    set_vectors_(expert, found.point.to(start))
    steps, converged = found.num_iterations.to(start.device), found.converged.to(start.device)
    return EvidenceFit((-num_rows * found.value).to(start), steps, converged, center, found.pairs)


def gradient_ascent(
    expert: Expert, evidence: Callable[[], Tensor], method: LBFGS, start_precision: float, num_rows: int
) -> Tensor:
    """Hyperparameters (M, P) after a few ascent steps on each expert's log posterior, never worse than before."""
    start = get_vectors(expert)

    def loss(points: Tensor, problems: Tensor) -> tuple[Tensor, Tensor]:
        vectors = start.clone()
        vectors[problems] = points.to(start)
        set_vectors_(expert, vectors)
        value, gradient = _loss(expert, evidence(), start, start_precision, num_rows)
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
                **method._asdict(),
            )
        except RuntimeError:  # from a kernel or a factorization: keep the start
            return start
    return start.index_copy(0, good, found.point.to(start))


def has_fixed_kernels(expert: Expert) -> TypeGuard[GaussianExpert]:
    """Whether noise and kernel scale are an expert's only trainable hyperparameters, without priors."""
    return (
        isinstance(expert, GaussianExpert)
        and isinstance(expert.features, RandomFourierFeatures)
        and isinstance(expert.features.kernel, ScaleKernel)
        and set(trainable(expert)) == _TRAINED
        and isinstance(log_priors(expert), float)
    )


@torch.no_grad()
def fit_fixed_kernels(expert: GaussianExpert, X: Tensor, y: Tensor) -> Tensor:
    """Set noise and prior variance of every expert of a batch to maximize its evidence, in place.

    Shapes: ``X`` (N, D), ``y`` (N,); returns (M,).
    """
    if not has_fixed_kernels(expert):
        raise ValueError("an expert has trainable hyperparameters other than noise and scale; use fit_empirical_bayes")
    kernel, noise_model = expert.features.kernel, expert.likelihood.noise_covar
    assert isinstance(kernel, ScaleKernel)
    least = float(noise_model.raw_noise_constraint.lower_bound)
    above = least + max(least, 1e-6) ** 2  # on a log scale the bound itself is infinitely far away
    noise, prior_variance, log_evidence = best_variances(profile(expert.features(X), y), above)
    kernel.outputscale = prior_variance.to(X)
    expert.likelihood.noise = noise.to(X).unsqueeze(-1)
    return log_evidence


def _loss(
    expert: Expert, evidence: Tensor, start: Tensor, start_precision: float, num_rows: int
) -> tuple[Tensor, Tensor]:
    """Negative log posterior per row and its gradient, (M,) and (M, P); infinite if it cannot be computed."""
    value = evidence.reshape(-1) + log_priors(expert)
    usable = torch.isfinite(value)
    gradient = gradient_vectors(expert, torch.where(usable, value, 0.0).sum())
    away = get_vectors(expert) - start
    gradient = (start_precision * away - gradient) / num_rows
    usable = usable & torch.isfinite(gradient).all(-1)
    value = (0.5 * start_precision * away.square().sum(-1) - value.detach()) / num_rows
    return torch.where(usable, value, torch.inf), torch.where(usable.unsqueeze(-1), gradient, 0.0)


def _evidence(expert: Expert, X: Tensor, y: Tensor) -> Tensor:
    """Log evidence of the observed rows, per expert, shape (M,)."""
    seen = _seen(y)
    return expert.log_evidence(X[seen], y[seen]).reshape(expert.num_experts)


def _seen(y: Tensor) -> Tensor:
    """Mask of rows whose targets are all observed, shape (N,)."""
    seen = ~torch.isnan(y)
    return seen if y.ndim == 1 else seen.all(-1)


def _check(expert: Expert, X: Tensor, y: Tensor) -> None:
    expert.features.check_inputs(X)
    if X.ndim != 2 or y.ndim not in (1, 2) or y.shape[:1] != X.shape[:1]:
        raise ValueError(f"X must be (N, D) and y (N,) with the same N, got {tuple(X.shape)} and {tuple(y.shape)}")
    if y.dtype != X.dtype:
        raise TypeError(f"X is {X.dtype} and y is {y.dtype}; give both the same dtype")
    if not bool(_seen(y).any()):
        raise ValueError("no target is observed; hyperparameters cannot be fitted")
    expert.check_targets(y)


class LaplaceInformation(NamedTuple):
    """Diagnostics of the approximation, per mode."""

    eigenvalues: Tensor  # eigenvalues of the negative Hessian before flooring, shape (M, P)
    num_floored: Tensor  # number below the prior precision (negative ones included), shape (M,)
    standard_deviations: Tensor  # of the approximation in the unconstrained space, shape (M, P)


class GaussianPerturbation(NamedTuple):
    """Independent Gaussian noise on every hyperparameter.

    Attributes:
        variance: Its variance in the unconstrained space (logarithms of length scales, variances and noise;
            untransformed centers and frequencies).
    """

    variance: float = 1e-3


def negative_hessian(expert: Expert, X: Tensor, y: Tensor) -> Tensor:
    """Negative Hessian of each expert's log posterior in its unconstrained hyperparameters, (M, P, P)."""
    gradient = gradient_vectors(expert, log_posterior(expert, X, y).sum(), create_graph=True)
    rows = [gradient_vectors(expert, gradient[:, p].sum()) for p in range(gradient.shape[-1])]
    hessian = torch.stack(rows, dim=-2).detach()
    return -0.5 * (hessian + hessian.mT)


def sample_hyperparameters(
    expert: Expert,
    X: Tensor,
    y: Tensor,
    num_samples: int,
    prior_precision: float = 4.0,
    *,
    generator: torch.Generator | None = None,
) -> tuple[Expert, LaplaceInformation]:
    r"""Experts with hyperparameters drawn from a Laplace approximation around each expert's mode.

    With H the negative Hessian of the log evidence in the unconstrained space, draws are
    :math:`N(\hat\psi, \tilde H^{-1})` (Waxman and Djuric 2024, section 4.1). Away from a proper maximum H is
    indefinite; its eigenvalues are floored at ``prior_precision``, which is the approximation under an extra
    Gaussian prior in those directions. Draws are independent copies: random features are those of
    their mode.

    Args:
        expert: Fitted experts, batch shape () or (M,); not changed.
        X: Warm-up inputs, shape (N, D).
        y: Warm-up targets, shape (N,).
        num_samples: Draws S per expert.
        prior_precision: Floor of the eigenvalues of H, per squared unit of the unconstrained space.
        generator: Source of randomness.

    Returns:
        Experts with batch shape (M S,), the draws of the first expert first, and diagnostics.

    Raises:
        ValueError: If ``num_samples`` or ``prior_precision`` is not positive.

    Example:
        >>> import torch
        >>> from gp_ensembles.experts.gaussian import GaussianExpert
        >>> from gp_ensembles.features import LinearFeatures
        >>> X = torch.linspace(-1, 1, 40, dtype=torch.float64).unsqueeze(-1)
        >>> expert = GaussianExpert(LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64)))
        >>> samples, _ = sample_hyperparameters(expert, X, X.squeeze(-1), 3, generator=torch.Generator())
        >>> samples.batch_shape
        torch.Size([3])
    """
    if num_samples < 1 or not prior_precision > 0:
        raise ValueError(f"num_samples and prior_precision must be positive, got {num_samples} and {prior_precision}")
    eigenvalues, axes = torch.linalg.eigh(negative_hessian(expert, X, y))
    if not bool(torch.isfinite(eigenvalues).all()):
        raise ValueError("the Hessian of the log evidence is not finite; fit the hyperparameters first")
    deviations = eigenvalues.clamp_min(prior_precision).rsqrt()
    mode = get_vectors(expert)
    shape = (mode.shape[0], num_samples, mode.shape[1])
    normals = torch.randn(
        shape, generator=generator, dtype=torch.float64, device=generator_device(generator, mode.device)
    ).to(mode)
    draws = mode.unsqueeze(1) + (normals * deviations.unsqueeze(1)) @ axes.mT

    samples = repeat_expert(expert, num_samples)
    set_vectors_(samples, draws.reshape(-1, mode.shape[1]))
    spread = ((axes * deviations.unsqueeze(-2)).square().sum(-1)).sqrt()
    return samples, LaplaceInformation(eigenvalues, (eigenvalues < prior_precision).sum(-1), spread)


def perturb_hyperparameters(
    expert: Expert, num_samples: int, variance: float = 1e-3, *, generator: torch.Generator | None = None
) -> Expert:
    r"""Experts with hyperparameters :math:`\hat\psi + N(0, v I)`, where :math:`\hat\psi` are each expert's own.

    Returns shape (M S,).
    """
    if num_samples < 1 or not variance > 0:
        raise ValueError(f"num_samples and variance must be positive, got {num_samples} and {variance}")
    samples = repeat_expert(expert, num_samples)
    modes = get_vectors(samples)
    where = generator_device(generator, modes.device)
    normals = torch.randn(modes.shape, generator=generator, dtype=torch.float64, device=where).to(modes)
    set_vectors_(samples, modes + variance**0.5 * normals)
    return samples


def repeat_expert(expert: Expert, num_copies: int) -> Expert:
    """Independent copies of every expert of a batch, () or (M,): batch shape (M S,), the first expert's first."""
    return expert.take(torch.arange(expert.num_experts, device="cpu").repeat_interleave(num_copies))
