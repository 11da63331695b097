"""Data sets on disk to manifests, one file a format."""
