"""Series over several machines, on Ray: a fleet divided over actors, data sets through it, and sweeps of configs."""

from gp_ensembles.distributed.ray_fleet import RayFleet, ShardLostError, divide_fleet
from gp_ensembles.distributed.ray_tasks import FleetColumns, observe_dataset, sweep

__all__ = [
    "FleetColumns",
    "RayFleet",
    "ShardLostError",
    "divide_fleet",
    "observe_dataset",
    "sweep",
]
