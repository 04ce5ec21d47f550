"""Adversarial streams through every combination of expert, adaptation, weight rule, error model and dtype.

Rows are constant, collinear, alternating, as large or small as numbers get, repeated, missing for long, or jump between
regimes. No call may raise anything but ``ValueError``, ``TypeError`` or ``NumericalError`` with a sentence; no variance
may be negative or NaN; weights sum to one (to 0.2 %); a call that
is rejected changes nothing, and illegal rows are rejected.
"""

import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.instances import DTYPES, NUM_INPUTS, Instance, instances
from attacks.telling import Table, Telling
from gp_ensembles.ensembles import OnlineEnsemble
from gp_ensembles.ensembles.predictions import EnsemblePredictions
from gp_ensembles.numerics.cholesky import NumericalError

DOCUMENTED = (ValueError, TypeError, NumericalError)
_ROWS = 240  # of one combination, before the next has its turn
_LONGEST_BLOCK = 40
_OFF = 2e-3  # of a sum of weights: in float32 the round-off of log densities of -10 000 is as large
_SHARE_ILLEGAL = 0.1  # of calls are followed by one with rows that must be rejected
_DECADES = {torch.float64: 300.0, torch.float32: 37.0}
_DENORMAL = {torch.float64: 5e-324, torch.float32: 1e-45}


class Finding(NamedTuple):
    """What broke a promise: the combination, the kind of rows, and how."""

    instance: str
    rows: str
    what: str


def _noise(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def _constant(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _noise(draw, 1, NUM_INPUTS).expand(n, -1).clone(), torch.full((n,), float(_noise(draw, 1)))


def _collinear(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    x = _noise(draw, n, 1)
    return x * torch.arange(1.0, NUM_INPUTS + 1, dtype=torch.float64), 3 * x.squeeze(-1)


def _alternating(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    sign = 1.0 - 2.0 * (torch.arange(n, dtype=torch.float64) % 2)
    return sign.unsqueeze(-1).expand(n, NUM_INPUTS).clone(), 10 * sign


def _large(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    power = _DECADES[dtype] * torch.rand(n, generator=draw, dtype=torch.float64)
    return 10 ** (power / 2).unsqueeze(-1) * _noise(draw, n, NUM_INPUTS).sign(), 10**power * _noise(draw, n).sign()


def _small(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    X, y = _large(n, draw, dtype)
    return 1 / X, 1 / y


def _denormal(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.full((n, NUM_INPUTS), _DENORMAL[dtype]), torch.full((n,), -_DENORMAL[dtype], dtype=torch.float64)


def _repeated(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    X, y = _noise(draw, 2, NUM_INPUTS), _noise(draw, 2)
    places = torch.arange(n) * 2 // max(n, 1)
    return X[places], y[places]


def _missing(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _noise(draw, n, NUM_INPUTS), torch.full((n,), torch.nan)


def _jumping(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    X = _noise(draw, n, NUM_INPUTS)
    level = 10 ** (6 * _noise(draw, 1)) * (torch.arange(n) >= n // 2)
    return X, X.sum(-1) + level + 0.1 * _noise(draw, n)


def _plain(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    X = _noise(draw, n, NUM_INPUTS)
    return X, X.sum(-1) + 0.1 * _noise(draw, n)


ROWS: dict[str, Callable[[int, torch.Generator, torch.dtype], tuple[Tensor, Tensor]]] = {
    "constant": _constant,
    "collinear": _collinear,
    "alternating": _alternating,
    "large": _large,
    "small": _small,
    "denormal": _denormal,
    "repeated": _repeated,
    "missing": _missing,
    "jumping": _jumping,
    "plain": _plain,
}


def rows_for(instance: Instance, kind: str, n: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of a kind in the dtype, and with the targets, of a combination."""
    dtype = DTYPES[instance.dtype]
    X, y = ROWS[kind](n, draw, dtype)
    if instance.has_labels:
        y = torch.where(torch.isnan(y), y, (y > 0).to(y.dtype))
    if instance.num_outputs is not None:
        y = torch.stack([y, -2 * y], -1)
    return X.to(dtype), y.to(dtype)


def broken_promise(online: OnlineEnsemble, X: Tensor, y: Tensor) -> tuple[str | None, bool]:
    """Observe rows.

    Returns:
        The promise that is broken, if one is, and whether the rows were rejected.
    """
    before = {name: value.clone() for name, value in online.state_dict().items()}
    try:
        found = online.observe(X, y)
    except DOCUMENTED as error:
        if not str(error).strip() or "\n" in str(error):
            return f"{type(error).__name__} without a sentence: {error}", True
        after = online.state_dict()
        moved = [name for name, value in before.items() if not torch.equal(_bits(value), _bits(after[name]))]
        return (f"a rejected call changed {moved[0]}" if moved else None), True
    except Exception as error:  # whatever is not documented
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", False
    return _broken_by(online, found), False


def _bits(value: Tensor) -> Tensor:
    return value.nan_to_num(nan=-1.5) if value.is_floating_point() else value


def _broken_by(online: OnlineEnsemble, found: EnsemblePredictions) -> str | None:
    variance = found.variance.diagonal(dim1=-2, dim2=-1) if found.variance.ndim > 2 else found.variance
    if bool(torch.isnan(variance).any()):
        return "a variance is NaN"
    if bool((variance < 0).any()):
        return "a variance is negative"
    for weights in (found.log_weights.exp(), online.log_weights.exp().unsqueeze(-1)):
        if not bool(((weights.sum(0) - 1).abs() < _OFF).all()):  # NaN fails, too
            return "weights do not sum to one"
    return None


def attack(instance: Instance, num_rows: int, seed: int) -> tuple[Counter[str], list[Finding]]:
    """Send rows through one combination: blocks of all kinds, one after another, and illegal ones between.

    Returns:
        How many rows were learned and rejected, and what was found.
    """
    choose, draw = random.Random(f"{instance} {seed}"), torch.Generator().manual_seed(seed)
    online = instance.build()
    counts: Counter[str] = Counter()
    findings: dict[str, Finding] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while counts.total() < num_rows:
            kind = choose.choice(list(ROWS))
            n = min(choose.randint(1, _LONGEST_BLOCK), num_rows - counts.total())
            X, y = rows_for(instance, kind, n, draw)
            if choose.random() < _SHARE_ILLEGAL:
                kind = "illegal"
                X[choose.randrange(n), choose.randrange(NUM_INPUTS)] = choose.choice((torch.nan, torch.inf))
            problem, is_rejected = broken_promise(online, X, y)
            if kind == "illegal" and problem is None and not is_rejected:
                problem = "an input that is not finite was learned"
            counts["rejected" if is_rejected else "learned"] += n
            if problem is not None:
                findings.setdefault(problem, Finding(", ".join(instance), kind, problem))
                online = instance.build()
    return counts, list(findings.values())


def main(argv: Sequence[str]) -> int:
    """Run the attack; returns 0 if every promise was kept, 1 if one was not."""
    telling = Telling("streams", __doc__)
    telling.options.add_argument("--rows", type=int, default=100_000, help="in all, shared by the combinations")
    telling.options.add_argument("--seed", type=int, default=0)
    values = telling.read(argv)
    left, round_number = values.rows, 0
    by_expert: dict[str, Counter[str]] = defaultdict(Counter)
    attacked: set[Instance] = set()
    findings: list[Finding] = []
    while left > 0:
        some = instances()
        random.Random(f"{values.seed} {round_number}").shuffle(some)
        for instance in some[: -(-left // _ROWS)]:
            counts, found = attack(instance, min(_ROWS, left), values.seed + round_number)
            by_expert[instance.expert] += counts
            findings += found
            attacked.add(instance)
            left -= counts.total()
        round_number += 1
    rows = [[name, counts.total(), counts["rejected"]] for name, counts in sorted(by_expert.items())]
    title = (
        f"Adversarial rows through {len(attacked)} of {len(instances())} combinations in {telling.seconds:.0f} seconds"
    )
    tables = [Table(title, ["expert", "rows", "refused in a sentence"], rows)]
    telling.tell(*tables, *([Table("What was found, and is open", Finding._fields, findings)] if findings else []))
    return 1 if findings else 0
