"""The pipeline from a table to predictions in its units: scales, warm-up, fit, observe, predict, checkpoint."""
