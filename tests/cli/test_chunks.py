"""What a stream writes has the same bits, however many rows are predicted, scored and handed out at once."""

import copy
from dataclasses import replace

import pytest
import torch

from gp_ensembles.cli.scored_stream import ScoredStream
from gp_ensembles.data import Table
from gp_ensembles.ensembles import targets
from gp_ensembles.ensembles.bases import FourierBasis, LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import e_doebe
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.streaming import StreamConfig
from gp_ensembles.tables.rows import Rows
from tests.cli.commands import InMemoryRows, open_table

pytestmark = pytest.mark.processor

WARMUP, ROWS = 60, 130
TARGETS = [
    *(targets.RealTarget(), targets.UnknownNoiseTarget(), targets.OutlierTarget(), targets.BinaryTarget()),
    *(targets.ClassTarget(3), targets.LevelTarget(3), targets.CountTarget()),
]


def rows_for(target):
    generator = torch.Generator().manual_seed(2)
    X = torch.randn(ROWS, 2, generator=generator, dtype=torch.float64)
    y = 0.5 * X.sum(-1) + torch.randn(ROWS, generator=generator, dtype=torch.float64)
    if target.num_labels is not None:
        y = torch.bucketize(y, y.new_tensor([-0.4, 0.4] if target.num_labels == 3 else [0.0])).double()
    elif isinstance(target, targets.CountTarget):
        y = torch.poisson((1 + 0.5 * y).exp(), generator=generator)
    y[75], y[110] = torch.nan, torch.nan
    return Table(X, y, ("a", "b"), "y", "made")


def bits(stream, table, num_blocks):
    """All numbers of the rows after the warm-up, with so many blocks to a chunk."""
    stream = copy.deepcopy(stream)
    stream.chunk_rows = num_blocks * stream.model.online.block_size
    chunks = list(stream.chunks(InMemoryRows(Rows(table.X[WARMUP:], table.y[WARMUP:], None, None, WARMUP + 1, None))))
    names = ("mean", "variance", "lower", "upper", "log_prob", "log_weights")
    found = {name: torch.cat([getattr(chunk, name) for chunk in chunks], dim=-1) for name in names}
    if chunks[0].probabilities is not None:
        found["probabilities"] = torch.cat([chunk.probabilities for chunk in chunks])
    return found


@pytest.mark.parametrize(
    "target",
    [pytest.param(target, marks=pytest.mark.slow if number > 1 else ()) for number, target in enumerate(TARGETS)],
    ids=lambda target: type(target).__name__,
)
def test_a_stream_has_the_same_bits_in_chunks_of_any_length(target):
    table = rows_for(target)
    spec = replace(
        e_doebe,
        bases=(LinearBasis(), FourierBasis(num_features=10, starts=(0.5,))),
        random_walk_variances=(1e-3,),
        fit_settings=FitSettings(LBFGS(max_iterations=5), num_samples=1),
        target=target,
    )
    stream = ScoredStream.start(StreamConfig(spec, warmup=WARMUP, block_size=8), open_table(table, WARMUP))
    whole = bits(stream, table, 30)
    assert whole["mean"].shape == (ROWS - WARMUP,)
    for num_blocks in (1, 2):
        part = bits(stream, table, num_blocks)
        for name, values in whole.items():
            assert torch.equal(part[name].nan_to_num(), values.nan_to_num()), (num_blocks, name)
