"""What a run is measured by, with unit, range and direction, and bounds on it."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from policies.words import did_you_mean


@frozen
class Metric:
    """One figure. at_least: a bound is the least that is allowed, else the most."""

    title: str
    unit: str
    at_least: bool
    high: float  # no bound makes sense above; none below 0
    meaning: str


PLENTY = 1e9
METRICS: Mapping[str, Metric] = {
    "goodput": Metric("goodput", "%", True, 100.0, "accepted, of the most that any client could have got accepted"),
    "refused": Metric("429", "%", False, 100.0, "refusals, of all attempts that were answered"),
    "second_half": Metric("2nd half", "%", True, 110.0, "goodput of the second half, of the limit's integral"),
    "first_five_minutes": Metric("first 5 min", "%", True, 110.0, "accepted by then, of the limit's integral"),
    "to_ninety": Metric("t90", "s", False, 86_400.0, "until a trailing minute holds 90 % of a minute's limit"),
    "recovery": Metric("recovery", "s", False, 86_400.0, "the same after more became possible; mean of all times"),
    "overshoot": Metric("overshoot", "%", False, PLENTY, "attempts of the fullest minute, over that minute's limit"),
    "refused_after_cut": Metric(
        "429s a cut",
        "",
        False,
        PLENTY,
        "refusals within 2 min after the limit fell, a neighbour came, the load rose; mean",
    ),
    "refused_in_outage": Metric("wasted", "", False, PLENTY, "refusals during an outage; mean of all outages"),
    "jain": Metric("Jain", "", True, 1.0, "index of fairness between the clients over the last hour"),
    "wait_p99": Metric("p99 wait", "s", False, 86_400.0, "from a prompt's first attempt to its accepted one"),
    "refusals": Metric("429s", "", False, PLENTY, "number of refusals"),
    "finished": Metric("finished", "s", False, 86_400.0, "until the last of a limited number of prompts was accepted"),
    "first_token": Metric("first token", "x", False, PLENTY, "median time to the head, second half, over its floor"),
}


@frozen
class Bound:
    """The least or most of a metric that is allowed."""

    metric: str
    value: float

    @classmethod
    def parse(cls, metric: str, value: object) -> Bound:
        """Raises ValueError for one that can't be met, or of nothing that is measured."""
        if metric not in METRICS:
            near = did_you_mean(metric, METRICS)
            raise ValueError(f"unknown metric {metric!r}{near}; there are: {', '.join(METRICS)}")
        high = METRICS[metric].high
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= high:
            raise ValueError(f"{metric} can be bounded from 0 to {high:g}, not by {value!r}")
        return cls(metric, value)

    def broken_by(self, value: float | None) -> str | None:
        """What is wrong with a figure, in words; None if nothing. A figure that there is not breaks its bound."""
        metric = METRICS[self.metric]
        if value is not None and (value >= self.value if metric.at_least else value <= self.value):
            return None
        word = "at least" if metric.at_least else "at most"
        unit = f" {metric.unit}" if metric.unit else ""
        found = "missing" if value is None else f"{value:.4g}{unit}"
        return f"{self.metric} is {found}, should be {word} {self.value:g}{unit}"


Bounds = tuple[Bound, ...]
