"""Events as the kit hands them out: who changes one is told so, which in a run nothing but a type checker does."""

from __future__ import annotations

from attrs import fields, frozen

from policies.contract import Accepted, Admitted, Event, Refused, Settled, Unknown

SEALED = {
    kind: frozen(type(kind.__name__, (kind,), {"__module__": kind.__module__}))
    for kind in (Admitted, Accepted, Refused, Settled, Unknown)
}


def sealed(event: Event) -> Event:
    """The same, and frozen at run time, too."""
    kind = type(event)
    copy: Event = SEALED[kind](**{each.name: getattr(event, each.name) for each in fields(kind)})
    return copy
