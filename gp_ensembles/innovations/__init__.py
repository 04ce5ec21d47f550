"""Innovation models: predictions from an expert's own past errors, of their level, their size and their tails."""

from gp_ensembles.innovations.bank import InnovationModel

__all__ = ["InnovationModel"]
