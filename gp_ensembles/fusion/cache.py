"""Experts' predictions, computed once and kept."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from gpytorch.models import ExactGP
from torch import Tensor

from gp_ensembles.fusion.experts import ExpertPredictions, predict_experts


class _Entry(NamedTuple):
    """What an expert predicted, for which inputs, and what it was then."""

    X: Tensor
    version: list[Tensor]
    predictions: ExpertPredictions


@final
class ExpertCache:
    """Predictions of K experts, each computed once for each set of inputs.

    An expert that has changed since, by its parameters, buffers or training data, predicts again; so does one whose
    inputs have changed in place. What an expert that is no module has learned cannot be seen: then call
    :meth:`clear`.

    Args:
        experts: K experts, as :func:`predict_experts` takes them.
        batch_size: Rows predicted at once.
        max_inputs: Sets of inputs kept; the one not used for longest goes first.

    Raises:
        ValueError: If there is no expert or room for no inputs.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.tabulated import TabulatedExpert
        >>> X = torch.tensor([[0.0], [1.0]])
        >>> cache = ExpertCache([TabulatedExpert(X, torch.tensor([3.0, 4.0]), torch.ones(2))])
        >>> first = cache.predict(X)
        >>> cache.predict(X.clone()).mean, cache.num_computed
        (tensor([[3., 4.]]), 1)
    """

    def __init__(self, experts: Sequence[object], *, batch_size: int = 1024, max_inputs: int = 8) -> None:
        if not experts or max_inputs < 1:
            raise ValueError("a cache needs an expert at least, and room for one set of inputs")
        self.experts = tuple(experts)
        self.batch_size = batch_size
        self.max_inputs = max_inputs
        self.num_computed = 0
        self._entries: list[OrderedDict[int, _Entry]] = [OrderedDict() for _ in experts]

    def predict(self, X: Tensor) -> ExpertPredictions:
        """Predictions of all experts at X (N, D), shapes (K, N), from the cache where they are known.

        Raises:
            TypeError: As :func:`predict_experts`.
            ValueError: As :func:`predict_experts`; what was kept stays.
        """
        every = [self._predict(number, X) for number in range(len(self.experts))]
        mean, variance, noise = (torch.cat(parts) for parts in zip(*every, strict=True))
        return ExpertPredictions(mean, variance, noise)

    def clear(self) -> None:
        """Forget all predictions."""
        for entries in self._entries:
            entries.clear()

    def _predict(self, number: int, X: Tensor) -> ExpertPredictions:
        entries, expert = self._entries[number], self.experts[number]
        version = _version(expert)
        for key, entry in entries.items():
            if _same([entry.X], [X]):
                if _same(entry.version, version):
                    entries.move_to_end(key)
                    return entry.predictions
                del entries[key]
                break
        predictions = predict_experts([expert], X, batch_size=self.batch_size)
        self.num_computed += 1
        kept = [tensor.clone() for tensor in version]
        entries[self.num_computed] = _Entry(X.detach().clone(), kept, predictions)
        while len(entries) > self.max_inputs:
            entries.popitem(last=False)
        return predictions


def _version(expert: object) -> list[Tensor]:
    """Tensors that an expert predicts from, as far as they can be seen."""
    found: list[Tensor] = []
    for part in expert if isinstance(expert, tuple) else (expert,):
        if isinstance(part, torch.nn.Module):
            for module in part.modules():
                found += [tensor.detach() for tensor in (*module.parameters(False), *module.buffers(False))]
                if isinstance(module, ExactGP):
                    data = (*(module.train_inputs or ()), module.train_targets)
                    found += [tensor for tensor in data if tensor is not None]
    return found


def _same(kept: list[Tensor], now: list[Tensor]) -> bool:
    alike = [(old.dtype, old.device) for old in kept] == [(new.dtype, new.device) for new in now]
    return alike and all(map(torch.equal, kept, now))
