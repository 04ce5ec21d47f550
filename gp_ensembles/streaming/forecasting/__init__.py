"""Several rows ahead: joint sample paths of an ensemble on a stream, and how they are scored."""

from gp_ensembles.streaming.forecasting.forecast import Forecast

__all__ = ["Forecast"]
