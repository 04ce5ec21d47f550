"""Streams from files: configs, sessions that can be resumed, scores against baselines, and the command line."""

from gp_ensembles.cli.baselines import Baselines
from gp_ensembles.cli.checkpoint import load_checkpoint, save_checkpoint
from gp_ensembles.cli.config import StreamConfig, load_config
from gp_ensembles.cli.session import Session

__all__ = [
    "Baselines",
    "Session",
    "StreamConfig",
    "load_checkpoint",
    "load_config",
    "save_checkpoint",
]
