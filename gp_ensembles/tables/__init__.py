"""Tables: files of any dialect, frames and streams as rows of numbers, in batches.

``stream`` (:func:`open_rows`, :class:`RowStream`) is the interface; ``text`` and ``frames`` read, ``kinds`` detects
column types on the warm-up rows, ``columns`` encode cells and targets, ``clock`` orders rows, ``encoder`` joins these.
"""

from gp_ensembles.tables.encoder import explain
from gp_ensembles.tables.options import TableOptions
from gp_ensembles.tables.stream import RowStream, open_rows

__all__ = ["RowStream", "TableOptions", "explain", "open_rows"]
