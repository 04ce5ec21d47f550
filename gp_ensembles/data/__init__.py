"""Tables, where they come from, and how a stream is cut from them."""

from gp_ensembles.data.bundled import airline_passengers, bananas, diabetes, trump_approval, water_flow
from gp_ensembles.data.covariance import CovarianceFunction, RBFCovariance
from gp_ensembles.data.folder import folder_names, load_folder
from gp_ensembles.data.openml import load_openml
from gp_ensembles.data.protocol import Standardizer, Stream, constant_columns, split_stream
from gp_ensembles.data.registry import available, load
from gp_ensembles.data.synthetic import (
    FunctionDraw,
    SensorDraw,
    SwitchingDraw,
    drifting_sensor,
    friedman1,
    friedman2,
    gp_draw,
    switching_gps,
)
from gp_ensembles.data.table import Table, read_csv

__all__ = [
    "CovarianceFunction",
    "FunctionDraw",
    "RBFCovariance",
    "SensorDraw",
    "Standardizer",
    "Stream",
    "SwitchingDraw",
    "Table",
    "airline_passengers",
    "available",
    "bananas",
    "constant_columns",
    "diabetes",
    "drifting_sensor",
    "folder_names",
    "friedman1",
    "friedman2",
    "gp_draw",
    "load",
    "load_folder",
    "load_openml",
    "read_csv",
    "split_stream",
    "switching_gps",
    "trump_approval",
    "water_flow",
]
