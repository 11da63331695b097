"""The probes of representations by name, and what checks their options before any embedding is made."""

from collections.abc import Callable, Mapping

from aurank.evaluation.probes.knn import check_knn, knn
from aurank.evaluation.probes.linear import check_linear_probe, linear_probe
from aurank.evaluation.probes.result import ProbeResult

PROBES: Mapping[str, Callable[..., ProbeResult]] = {"knn": knn, "linear_probe": linear_probe}
CHECKS: Mapping[str, Callable[..., None]] = {"knn": check_knn, "linear_probe": check_linear_probe}
