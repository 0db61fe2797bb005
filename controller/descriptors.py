"""The limit on open files: one for each attempt in flight, so it is looked at before anything is sent."""

from __future__ import annotations

import resource

SPARE = 64  # files, pipes, sockets being closed, Python's own
LEAST_SPARE = 24  # what a run uses beside its attempts' sockets, and some more


def make_room(attempts: int) -> None:
    """Raise the soft limit as far as `attempts` open at once need; ValueError if the hard limit is too low."""
    needed = attempts + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < attempts + LEAST_SPARE:
        raise ValueError(
            f"--max-in-flight {attempts} needs {needed} open files, but this process may have {hard} at most: "
            f"lower it to {max(hard - LEAST_SPARE, 1)}, or raise the limit (ulimit -Hn, LimitNOFILE=)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
