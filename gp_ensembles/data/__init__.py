"""Tables, and where they come from.

- :mod:`~gp_ensembles.data.table`: :class:`Table`, and :func:`read_csv` with everything said that is wrong with a file.
- :mod:`~gp_ensembles.data.datasets`: sets by name (:func:`available`, :func:`load`), and the bundled ones themselves.
- :mod:`~gp_ensembles.data.folder`: sets of a folder with a manifest of their columns.
- :mod:`~gp_ensembles.data.synthetic`: draws from known distributions, each with the noise-free truth.
- :mod:`~gp_ensembles.data.messy`: a table as a meter leaves it, for the demo.
"""

from gp_ensembles.data.datasets import (
    airline_passengers,
    available,
    bananas,
    diabetes,
    load,
    trump_approval,
    water_flow,
)
from gp_ensembles.data.folder import folder_names, load_folder
from gp_ensembles.data.synthetic import (
    drifting_sensor,
    friedman1,
    friedman2,
    gp_draw,
    switching_gps,
)
from gp_ensembles.data.table import Table, read_csv

__all__ = [
    "Table",
    "airline_passengers",
    "available",
    "bananas",
    "diabetes",
    "drifting_sensor",
    "folder_names",
    "friedman1",
    "friedman2",
    "gp_draw",
    "load",
    "load_folder",
    "read_csv",
    "switching_gps",
    "trump_approval",
    "water_flow",
]
