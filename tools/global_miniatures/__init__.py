"""The parts of tools/miniature_global.py."""
