"""The pipeline from tables in their own units to distributions in the units of the target.

``model`` (:class:`OnlineModel`: warm-up, fit, observe, predict, save and load), ``config`` (:class:`StreamConfig`),
``scales`` (:class:`Standardizer`), ``inputs`` (columns, gaps, ranges), ``checks`` (rows that can be learned),
``running`` (predictions during the warm-up), ``content`` (files), ``forecasting`` (several rows ahead). The command
line, scikit-learn and river use it.
"""

from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.model import OnlineModel

__all__ = [
    "OnlineModel",
    "StreamConfig",
]
