"""The parts of tools/experiments/miniature_global.py."""
