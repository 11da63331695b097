"""Thresholds: from which score on a match is right often enough."""

from aurank.evaluation.calibration.calibrate import Calibration, calibrate, calibrate_report

__all__ = ["Calibration", "calibrate", "calibrate_report"]
