"""Experts over several processes, on plain ``torch.distributed``; series over several machines, on Ray.

``ensemble`` (the object), ``model`` (the pipeline around it), ``pieces`` (which experts lie together), ``ranks`` (what
processes tell one another);
``ray_fleet`` (a fleet divided over actors), ``ray_tasks`` (data sets through it, and sweeps).
"""

from gp_ensembles.distributed.ensemble import DistributedEnsemble
from gp_ensembles.distributed.ranks import RankLostError
from gp_ensembles.distributed.ray_fleet import RayFleet, ShardLostError, divide_fleet
from gp_ensembles.distributed.ray_tasks import FleetColumns, observe_dataset, sweep

__all__ = [
    "DistributedEnsemble",
    "FleetColumns",
    "RankLostError",
    "RayFleet",
    "ShardLostError",
    "divide_fleet",
    "observe_dataset",
    "sweep",
]
