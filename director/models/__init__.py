"""Attention, the paper's transformers, the transition kernel, the student, and files of weights."""
