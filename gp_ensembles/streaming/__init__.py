"""The pipeline from tables in their own units to distributions in the units of the target.

``model`` (:class:`OnlineModel`: warm-up, fit, observe, predict, save and load), ``config`` (:class:`StreamConfig`),
``columns`` (the use of columns, :class:`Standardizer`), ``inputs`` and ``input_states`` (gaps, ranges, scales),
``checks`` and ``bad_rows`` (rows that can be learned), ``predictions`` (those during the warm-up among them),
``content`` (files), ``forecasting`` (several rows ahead). The command line, scikit-learn and river use it.
"""

from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.model import OnlineModel

__all__ = ["OnlineModel", "StreamConfig"]
