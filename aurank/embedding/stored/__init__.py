"""Trained models: checkpoint files, and loading models from files and folders."""
