"""Cholesky factorization whose failures raise."""

import torch
from torch import Tensor


class NumericalError(RuntimeError):
    """A computation became numerically unreliable; the message names the expert and the step."""


def cholesky(matrix: Tensor, what: str) -> Tensor:
    r"""Lower Cholesky factor of symmetric positive definite matrices, without jitter.

    Shapes: ``matrix`` (\*batch, n, n); returns (\*batch, n, n).

    Raises:
        NumericalError: If a matrix is not positive definite; the message names the batch entry (expert)
            and the order of the leading minor that failed (step).
    """
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(matrix)
    try:
        # Inside vmap, ``tolist`` copies from a GPU before it fails, which breaks a graph that is being recorded.
        failed = any(info.reshape(-1).tolist()) if info.is_cpu else bool(info.any())
    except RuntimeError:  # inside vmap, and on the meta device, values cannot be read
        return torch.where((info != 0)[..., None, None], torch.nan, factor)
    if failed:
        raise NumericalError(_message(info, what, matrix.dtype))
    return factor


def _message(info: Tensor, what: str, dtype: torch.dtype) -> str:
    flat = info.reshape(-1)
    entry = int((flat != 0).int().argmax())
    expert = f" of expert {entry}" if info.ndim else ""
    remedy = "use float64" if dtype != torch.float64 else "use a larger noise, or the square-root form of a filter"
    return f"{what} is not positive definite at step {int(flat[entry])}{expert}; {remedy}"
