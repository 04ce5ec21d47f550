"""The one pipeline: tables in their own units in, distributions in the units of the target out.

``model`` (:class:`OnlineModel`: warm-up, fit, observe, predict, save and load), ``config`` (:class:`StreamConfig`, what
such a model is), ``scales`` (:class:`Standardizer`), ``checks`` (which rows can be learned), ``running`` (what is
predicted while the warm-up lasts), ``checkpoint`` (files). The command line, scikit-learn and river stand on it.
"""

from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.model import OnlineModel
from gp_ensembles.streaming.scales import Standardizer, constant_columns

__all__ = ["OnlineModel", "Standardizer", "StreamConfig", "constant_columns"]
