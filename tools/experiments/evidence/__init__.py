"""The benchmark of all losses on saved features; the command is tools/benchmark.py."""
