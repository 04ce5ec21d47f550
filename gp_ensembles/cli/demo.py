"""The main job on real data that travels with the package: a drifting stream, predicted day by day."""

from dataclasses import replace

import torch

from gp_ensembles.cli.commands import Output, stream
from gp_ensembles.cli.tables import open_table
from gp_ensembles.data import Table, load
from gp_ensembles.ensembles.bases import FourierBasis, HilbertBasis, LinearBasis, RadialBasis
from gp_ensembles.ensembles.presets import e_doebe
from gp_ensembles.streaming import StreamConfig

SET = "trump_approval"
_BASES = (LinearBasis(), HilbertBasis(), FourierBasis(), RadialBasis())
CONFIG = StreamConfig(replace(e_doebe, bases=_BASES), warmup=200)


def run_demo(output: Output) -> dict[str, object]:
    """Predict a president's daily approval from five pollsters and the day before, with E-DOEBE.

    1001 days drift by several times what the 200 warm-up days show.

    Args:
        output: What to leave behind.

    Returns:
        The summary.
    """
    return stream(open_table(with_previous(load(SET)), CONFIG.warmup), CONFIG, output)


def with_previous(table: Table) -> Table:
    """The table with the target of the row before as one more input, and without its first row.

    Args:
        table: A table without missing targets.

    Returns:
        A table of N - 1 rows and D + 1 inputs.

    Example:
        >>> X = torch.zeros(3, 1, dtype=torch.float64)
        >>> with_previous(Table(X, torch.arange(3.0, dtype=torch.float64), ("x",), "level", "tide")).X
        tensor([[0., 0.],
                [0., 1.]], dtype=torch.float64)
    """
    X = torch.cat([table.X[1:], table.y[:-1].unsqueeze(-1)], dim=1)
    names = (*table.feature_names, f"previous {table.target_name}")
    return table._replace(X=X, y=table.y[1:], feature_names=names)
