"""Tables, where they come from, and how a stream is cut from them."""

from gp_ensembles.data.protocol import Standardizer, Stream, constant_columns, split_stream
from gp_ensembles.data.table import Table, read_csv

__all__ = ["Standardizer", "Stream", "Table", "constant_columns", "read_csv", "split_stream"]
