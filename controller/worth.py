"""What reservations turn out to be worth: they are on the safe side, and a policy must not count what comes back."""

from __future__ import annotations

from attrs import define, field

LASTING = 0.98  # of what earlier settlements say of the worth of a reservation, with each one more
PRIOR = 5.0  # settlements that believe in the whole reservation, before there are any


@define(eq=False)
class Worth:
    """Of the sums of the last reservations, what they were settled at."""

    _reserved: float = field(default=0.0, init=False)
    _settled: float = field(default=0.0, init=False)

    @property
    def is_known(self) -> bool:
        """Some settlement came to something else than its reservation."""
        return self._reserved > 0

    def weigh(self, reserved: float, true_cost: float) -> float:
        """One settlement more; the share of a reservation that is worth believing in now."""
        if not self._reserved:
            self._reserved = self._settled = PRIOR * reserved
        self._reserved = LASTING * self._reserved + reserved
        self._settled = LASTING * self._settled + true_cost
        return self._settled / self._reserved
