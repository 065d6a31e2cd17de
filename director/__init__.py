"""Calibrated uncertainty from pretrained transformers (DIRECTOR, arXiv 2602.08920)."""
