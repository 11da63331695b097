"""The three benchmarks of the papers: what they are as published, and their readers."""

from aurank.data.readers.benchmarks.facts import BENCHMARKS, Benchmark
from aurank.data.readers.benchmarks.readers import inaturalist2018, sop, vehicleid

__all__ = ["BENCHMARKS", "Benchmark", "inaturalist2018", "sop", "vehicleid"]
