"""LARS, as timm has it; timm is imported in this package alone."""

from timm.optim.lars import Lars

__all__ = ["Lars"]
