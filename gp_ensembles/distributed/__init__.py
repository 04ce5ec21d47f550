"""Experts over several processes, on plain ``torch.distributed``.

``ensemble`` (the object), ``pieces`` (which experts lie together), ``ranks`` (what processes tell one another).
"""

from gp_ensembles.distributed.ensemble import DistributedEnsemble
from gp_ensembles.distributed.ranks import RankLostError

__all__ = ["DistributedEnsemble", "RankLostError"]
