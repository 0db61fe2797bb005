"""Scenario files: TOML -> Scenario; every fault is a ValueError of one line that names the file and the key."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar

import attrs

from policies import registry
from policies.contract import JSON
from policies.words import did_you_mean
from simulations.bounds import Bound, Bounds
from simulations.measures import unmeasured
from simulations.profile import make_profile
from simulations.scenario import Clients, Habits, Latency, Neighbour, Outage, Scenario, Span
from simulations.sizes import Kind
from simulations.traces import read_trace
from simulations.workload import Phase, Workload

T = TypeVar("T")
Table = Mapping[str, JSON]

TOP = ("about", "tag", "duration", "feedback", "policy", "options", "upstream", "outage", "neighbour", "habits")
KEYS = (*TOP, "clients", "workload", "latency", "bounds")
SUFFIX = ".toml"
WRITTEN = {"arrivals": "trace"}  # a field that has another name in a file


def scenario_names() -> list[str]:
    """The scenarios that can be run by name."""
    return sorted(file.name.removesuffix(SUFFIX) for file in _folder().iterdir() if file.name.endswith(SUFFIX))


def load_scenario(name: str) -> Scenario:
    """By name, or by the path of a file that ends in .toml; raises ValueError in one line."""
    if name in scenario_names():
        return _read(_folder().joinpath(name + SUFFIX), name)
    if name.endswith(SUFFIX):
        return _read(Path(name), Path(name).stem)
    names = scenario_names()
    raise ValueError(f"unknown scenario {name!r}{did_you_mean(name, names)}; there are: {', '.join(names)}")


def _folder() -> Traversable:
    return resources.files("simulations").joinpath("scenarios")


def _read(file: Traversable, name: str) -> Scenario:
    try:
        table: Table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not TOML: {error}") from error

    def read_beside(other: str) -> str:
        beside = Path(str(file)).parent / other
        try:
            return beside.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{other} can't be read: {error}") from error

    try:
        return parse_scenario(name, table, read_beside)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def parse_scenario(name: str, table: Table, read_beside: Callable[[str], str]) -> Scenario:
    """From the tables of a file; read_beside: the text of a file named in it. ValueError names the key."""
    _check_keys(table, KEYS, "")
    upstream = dict(_table(table, "upstream"))
    offset = upstream.pop("offset", 0.0)
    about = table.get("about")
    if not isinstance(about, str) or not about.strip():
        raise ValueError("about: say in a few words what shape to expect")
    plain: dict[str, object] = {key: table[key] for key in ("tag", "duration", "policy") if key in table}
    if "feedback" in table:
        plain["feedback"] = tuple(_texts(table, "feedback"))
    options = _options(table.get("policy"), _table(table, "options"))
    scenario = Scenario(
        name=name,
        about=about.strip(),
        upstream=_named("upstream", lambda: make_profile(name, upstream)),
        offset=offset,  # type: ignore[arg-type]  # the validators check every value
        options=options,
        outages=tuple(_each(table, "outage", Outage)),
        neighbours=tuple(_each(table, "neighbour", Neighbour)),
        habits=_made("habits", Habits, _table(table, "habits")),
        clients=_made("clients", Clients, _table(table, "clients"), joins=_instants),
        workload=_workload(_table(table, "workload"), read_beside),
        latency=_made("latency", Latency, _table(table, "latency"), arrival=_span, head=_span, end=_span),
        bounds={mode: _bounds(mode, _table(_table(table, "bounds"), mode)) for mode in _table(table, "bounds")},
        **plain,  # type: ignore[arg-type]  # the validators check every value
    )
    _check_times(scenario)
    _check_bounds(scenario)
    return scenario


def _check_times(scenario: Scenario) -> None:
    """What begins after the end would never happen, and bounds on it would hold whatever the policy does."""
    starts = [
        *(("outage", each.start) for each in scenario.outages),
        *(("neighbour", each.start) for each in scenario.neighbours),
        *(("clients.joins", at) for at in scenario.clients.joins),
    ]
    for key, start in starts:
        if start >= scenario.duration:
            raise ValueError(f"{key}: {start:g} s is not before the end, which is at {scenario.duration:g} s")


def _check_bounds(scenario: Scenario) -> None:
    """A bound on what nobody measures would be broken whatever the policy does."""
    for mode, bounds in scenario.bounds.items():
        for bound in bounds:
            why = unmeasured(scenario, bound.metric)
            if why is not None:
                raise ValueError(f"bounds.{mode}: {bound.metric} can't be met: {why}")


def _workload(table: Table, read_beside: Callable[[str], str]) -> Workload:
    if "trace" not in table:
        return _made("workload", Workload, table, phases=_phases, mix=_mix)
    _check_keys(table, ("trace", "prompts"), "workload.", " with a trace")
    name = str(table["trace"])
    arrivals = _named("workload.trace", lambda: read_trace(name, read_beside(name)))
    rest = {key: value for key, value in table.items() if key != "trace"}
    return attrs.evolve(_made("workload", Workload, rest), arrivals=arrivals)


def _options(policy: JSON, table: Table) -> Mapping[str, str]:
    """As texts, the way that they are given on the command line; checked by the policy."""
    options = {key: str(value) for key, value in table.items()}
    if policy is None:
        if options:
            raise ValueError("options: give a policy as well")
        return {}
    if not isinstance(policy, str):
        raise ValueError(f"policy must be a name, not {policy!r}")
    found = _named("policy", partial(registry.find, policy))
    _named("options", partial(registry.make_options, found, options))
    return options


# -- values


def _span(value: object) -> Span:
    match value:
        case [int() | float() as low, int() | float() as high]:
            return Span(float(low), float(high))
    raise ValueError(f"a range is [low, high] in seconds, not {value!r}")


def _instants(value: object) -> tuple[float, ...]:
    instants = []
    for each in value if isinstance(value, list) else [None]:
        if isinstance(each, bool) or not isinstance(each, int | float):
            raise ValueError(f"a list of instants in seconds, not {value!r}")
        instants.append(float(each))
    return tuple(instants)


def _phases(value: object) -> tuple[Phase, ...]:
    phases = []
    for pair in value if isinstance(value, list) else [None]:
        match pair:
            case [int() | float() as start, int() | float() as per_second] if start >= 0 and per_second >= 0:
                phases.append(Phase(float(start), float(per_second)))
            case _:
                raise ValueError(f"[[from_seconds, prompts_per_second], ...], not {value!r}")
    return tuple(phases)


def _mix(value: object) -> tuple[Kind, ...]:
    rows = value if isinstance(value, list) else [None]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError("give it as [[workload.mix]]")
    return tuple(_made("kind", Kind, row) for row in rows if isinstance(row, dict))


def _bounds(mode: str, table: Table) -> Bounds:
    return tuple(_named(f"bounds.{mode}", partial(Bound.parse, metric, value)) for metric, value in table.items())


# -- tables


def _table(table: Table, key: str) -> Table:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise ValueError(f"{key} must be a table, not {value!r}")
    return value


def _texts(table: Table, key: str) -> Sequence[str]:
    value = table[key]
    if not isinstance(value, list):
        raise ValueError(f"{key} must be a list of words, not {value!r}")
    return [str(each) for each in value]


def _each(table: Table, key: str, kind: type[T]) -> list[T]:
    rows = table.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{key} must be given as [[{key}]]")
    return [_made(key, kind, row) for row in rows if isinstance(row, dict)]


def _check_keys(table: Table, known: Sequence[str], where: str, when: str = "") -> None:
    for key in table:
        if key not in known:
            there_are = f"there are{when}: {', '.join(known)}"
            raise ValueError(f"unknown key {where}{key}{did_you_mean(key, known)}; {there_are}")


def _made(where: str, kind: type[T], table: Table, **converters: Callable[[object], object]) -> T:
    """An attrs instance from a table, with converters for some of its keys."""
    fields: Sequence[attrs.Attribute[object]] = attrs.fields(kind)  # type: ignore[arg-type]
    _check_keys(table, [WRITTEN.get(field.name, field.name) for field in fields], f"{where}.")
    missing = [field.name for field in fields if field.default is attrs.NOTHING and field.name not in table]
    if missing:
        raise ValueError(f"{where}: {missing[0]} is missing")
    values = {}
    for key, value in table.items():
        convert = converters.get(key)
        values[key] = value if convert is None else _named(f"{where}.{key}", partial(convert, value))
    return _named(where, lambda: kind(**values))


def _named(where: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
