"""What an expert's own errors say of the next one: their level, their size, and how heavy their tails are."""

from gp_ensembles.innovations.bank import InnovationBank, InnovationPredictions, InnovationState
from gp_ensembles.innovations.model import InnovationModel

__all__ = ["InnovationBank", "InnovationModel", "InnovationPredictions", "InnovationState"]
