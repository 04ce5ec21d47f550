"""Tables and data sets.

- :mod:`~gp_ensembles.data.table`: :class:`Table`, and :func:`read_csv` for a whole file.
- :mod:`~gp_ensembles.data.datasets`: data sets by name (:func:`available`, :func:`load`), and the bundled ones.
- :mod:`~gp_ensembles.data.folder`: data sets of a folder with a manifest.
- :mod:`~gp_ensembles.data.synthetic`: draws from known distributions, with noise-free values, and raw
  meter readings for the demo.
"""

from gp_ensembles.data.datasets import airline_passengers, available, bananas, load, trump_approval, water_flow
from gp_ensembles.data.folder import load_folder
from gp_ensembles.data.synthetic import drifting_sensor, friedman1, friedman2
from gp_ensembles.data.table import Table, read_csv

__all__ = [
    "Table",
    "airline_passengers",
    "available",
    "bananas",
    "drifting_sensor",
    "friedman1",
    "friedman2",
    "load",
    "load_folder",
    "read_csv",
    "trump_approval",
    "water_flow",
]
