"""Miniatures of the experiments of Wen et al. (NeurIPS 2022); the command is tools/experiments/miniature_soprc.py."""
