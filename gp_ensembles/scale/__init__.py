"""Series over several machines, on Ray: a fleet divided over actors, data sets through it, and sweeps of configs."""

from gp_ensembles.scale.ray_fleet import RayFleet, divide_fleet
from gp_ensembles.scale.ray_tasks import observe_dataset, sweep

__all__ = ["RayFleet", "divide_fleet", "observe_dataset", "sweep"]
