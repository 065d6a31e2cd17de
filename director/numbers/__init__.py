"""Predictions and what is computed from them: numpy and scipy, no torch."""
