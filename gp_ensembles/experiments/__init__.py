"""Streams from files: configs, sessions that can be resumed, scores against baselines, and the command line."""

from gp_ensembles.experiments.baselines import Baselines
from gp_ensembles.experiments.checkpoint import load_checkpoint, save_checkpoint
from gp_ensembles.experiments.config import StreamConfig, load_config
from gp_ensembles.experiments.session import Session

__all__ = [
    "Baselines",
    "Session",
    "StreamConfig",
    "load_checkpoint",
    "load_config",
    "save_checkpoint",
]
