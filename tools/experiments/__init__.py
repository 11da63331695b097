"""Trainings that compare losses; the command is tools/experiment.py."""
