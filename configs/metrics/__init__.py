"""Every metric of a run by name, with its unit and its meaning."""

from milepost.configs.metrics.elsewhere import ELSEWHERE, Elsewhere
from milepost.configs.metrics.metric import Metric, Metrics
from milepost.configs.metrics.table import METRICS

__all__ = ["ELSEWHERE", "METRICS", "Elsewhere", "Metric", "Metrics"]
