"""A run: the model started, rows embedded block by block, and all that was found so far."""

import time
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.cli.embed.options import build_model
from gp_ensembles.cli.embed.preparation import Prepared
from gp_ensembles.ensembles.interrupts import uninterrupted
from gp_ensembles.gplvm import IEGPLVM, Embeddings
from gp_ensembles.numerics.cholesky import NumericalError


class Progress(NamedTuple):
    """How far a run has come.

    Attributes:
        num_done: Rows with a value that are embedded, the warm-up included.
        start_seconds: Time of the start from the warm-up rows.
        stream_seconds: Time of all rows after them.
    """

    num_done: int
    start_seconds: float
    stream_seconds: float


@final
class EmbedRun:
    """Rows embedded in the order of time.

    Args:
        prepared: The rows.
        model: A started model.
        found: Room for all n rows with a value, on the host; the first ``progress.num_done`` are filled.
        progress: How far it is filled.
    """

    def __init__(self, prepared: Prepared, model: IEGPLVM, found: Embeddings, progress: Progress) -> None:
        self.prepared = prepared
        self.model = model
        self.found = found
        self.progress = progress
        order = (prepared.present.cumsum(0) - 1).tolist()
        has_value = prepared.present.tolist()
        self._numbers: list[int] = prepared.present.nonzero().flatten().tolist()
        #: Where each row of the table stands among those with a value; ``None`` for one without.
        self.places = [place if has else None for place, has in zip(order, has_value, strict=True)]

    @classmethod
    def start(cls, prepared: Prepared) -> "EmbedRun":
        """Embed the warm-up rows together.

        Raises:
            ValueError: If there are more latent dimensions than columns, or the rows vary in too few directions.
            NumericalError: If an expert's posterior is not positive definite.
        """
        options, num_rows = prepared.options, len(prepared.Y)
        model = build_model(options, prepared.Y.shape[1], num_rows)
        began = time.perf_counter()
        first = model.start(prepared.Y[: prepared.warmup].to(options.torch_device))
        progress = Progress(0, time.perf_counter() - began, 0.0)
        run = cls(prepared, model, room(prepared, model), progress)
        run._keep(first)
        return run

    @property
    def num_read(self) -> int:
        """Rows of the table up to the last one embedded."""
        done = self.progress.num_done
        return len(self.places) if self.is_complete else self._numbers[done - 1] + 1

    @property
    def is_complete(self) -> bool:
        """Whether all rows are embedded."""
        return self.progress.num_done >= len(self.prepared.Y)

    def advance(self) -> int:
        """Embed the next block and learn it; an interruption waits until that is done.

        Returns:
            Number of rows embedded.

        Raises:
            ValueError: If the model refuses a row; it is as it was before the block.
            NumericalError: If a density or posterior breaks down; likewise.
        """
        options = self.prepared.options
        first = self.progress.num_done
        block = self.prepared.Y[first : first + options.block_size].to(options.torch_device)
        with uninterrupted():
            began = time.perf_counter()
            try:
                found = self.model.update(block, options.block_size)
            except (ValueError, NumericalError) as error:
                numbers = self._numbers[first : first + len(block)]
                kind = NumericalError if isinstance(error, NumericalError) else ValueError
                rows = self.prepared.rows
                where = rows.where(numbers[0]) + (f" to {numbers[-1] + 1}" if len(numbers) > 1 else "")
                raise kind(f"{where}: {error}") from error
            self._keep(found)
            seconds = time.perf_counter() - began  # the copy to the host has waited for the device
            self.progress = self.progress._replace(stream_seconds=self.progress.stream_seconds + seconds)
        return len(block)

    def _keep(self, found: Embeddings) -> None:
        first = self.progress.num_done
        last = first + len(found.embedding)
        self.found.embedding[first:last] = found.embedding
        self.found.expert[first:last] = found.expert
        self.found.by_expert[:, first:last] = found.by_expert
        self.found.log_prob[first:last] = found.log_prob
        self.found.log_weights[:, first:last] = found.log_weights
        self.found.converged[:, first:last] = found.converged
        self.progress = self.progress._replace(num_done=last)

    def one_space(self) -> Tensor:
        """All rows in the latent space of the model's best expert so far, shape (n, d)."""
        return self.found.by_expert[self.model.best_expert]


def room(prepared: Prepared, model: IEGPLVM) -> Embeddings:
    """Room for what will be said of n rows."""
    Y, num_rows, num_experts = prepared.Y, len(prepared.Y), model.num_experts
    by_expert = Y.new_full((num_experts, num_rows, model.num_latent), torch.nan)
    log_weights = Y.new_full((num_experts, num_rows), torch.nan)
    expert = torch.full((num_rows,), -1, dtype=torch.int64, device=Y.device)
    converged = torch.zeros((num_experts, num_rows), dtype=torch.bool, device=Y.device)
    return Embeddings(by_expert[0].clone(), expert, by_expert, log_weights[0].clone(), log_weights, converged)
