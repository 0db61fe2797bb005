"""The ladder: imports go down only. Read with ast, so a forbidden import is seen even where no test runs it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("policies", "controller", "simulations")

# One rung a line, lowest first; a module may import modules of lower rungs, and of its own rung if that makes no
# circle. "name*" stands for every module whose name begins so.
LADDER: tuple[tuple[str, ...], ...] = (
    ("policies.contract", "policies.words", "controller.bucket", "controller.sse", "controller.strict"),
    (
        "policies.plugins",
        "controller.outcome",
        "controller.settings",
        "controller.dialects.hints",
        "simulations.steps",
        "simulations.standing",
        "simulations.ranges",
        "simulations.slope",
        "simulations.curve",
    ),
    (
        "policies.fields",
        "policies.sent",
        "policies.sealed",
        "policies.allowance",
        "policies.aimd",
        "policies.fixed",
        "policies.recall*",
    ),
    ("policies.headers", "policies.sprint", "policies.gradient", "policies.mimd"),
    ("controller.records", "controller.retry", "controller.estimate", "controller.knowledge"),
    ("simulations.sliding_log", "simulations.quota"),
    ("controller.keytable", "controller.durable", "controller.done", "controller.breaker", "controller.budget"),
    ("controller.midnight", "controller.prices", "controller.merge"),
    ("controller.charges", "controller.memory", "controller.tokenizers"),
    ("controller.ceiling", "controller.crowd"),
    ("controller.room",),
    ("policies.registry", "controller.permits", "simulations.asked", "simulations.answers"),
    ("policies.law", "policies.traces", "policies.stories", "policies.complaints", "policies.judge"),
    ("policies.bursts", "policies.disorder"),
    ("policies.laws",),
    ("controller.binding", "controller.soundness", "controller.worth"),
    ("controller.adaptive", "controller.rows", "controller.forms"),
    ("simulations.script", "simulations.census", "simulations.charging", "simulations.production"),
    ("simulations.dialects.*",),
    ("simulations.faults", "simulations.manners", "simulations.hinting"),
    ("controller.dormant", "controller.holds"),
    ("controller.dimensions", "simulations.knobs", "simulations.limits"),
    ("controller.limiter", "controller.dialects.*", "controller.lines", "simulations.profile", "simulations.provider"),
    ("controller.waiters", "controller.identity", "controller.repair", "controller.telemetry", "controller.stderr"),
    ("controller.continued", "controller.emission", "controller.rescue", "controller.half"),
    ("controller.output",),
    (
        "controller.gate",
        "controller.journal",
        "controller.sources",
        "controller.spool",
        "controller.underway",
        "controller.outbox",
        "controller.proxies",
        "controller.connection",
        "controller.decisions",
        "controller.descriptors",
        "controller.crew",
        "controller.supervisor",
    ),
    ("controller.intake", "controller.following"),
    ("controller.live", "controller.store", "controller.proof"),
    ("controller.progress", "controller.transport", "controller.tap", "controller.trouble", "controller.clocks"),
    ("controller.attempt",),
    ("controller.upstream",),
    ("controller.patience", "controller.gates", "controller.purse"),
    ("controller.bench",),
    ("controller.worker",),
    ("controller.daemon", "controller.keeper"),
    ("controller.assemble", "controller.closing", "controller.reload", "simulations.transport", "simulations.server"),
    ("controller.reach",),
    ("controller.job", "simulations.virtual"),
    ("simulations.sizes",),
    ("simulations.client", "simulations.workload", "simulations.traces", "simulations.bounds"),
    ("simulations.scenario", "simulations.trial"),
    (
        "simulations.limiter_client",
        "simulations.peers*",
        "simulations.hidden*",
        "simulations.oracle",
        "simulations.tally",
    ),
    ("simulations.measures", "simulations.scenario_files", "simulations.closed_loop"),
    ("simulations.sharing",),
    ("simulations.laws",),
    ("simulations.runs", "simulations.trace_runs"),
    ("simulations.report", "simulations.results_page", "simulations.knobs_page", "simulations.plot"),
    (
        "simulations.commands",
        "simulations.check",
        "simulations.law_items",
        "simulations.pytest_plugin",
        "simulations.serving",
    ),
    ("controller.dry_run",),
    ("controller.cli",),
    ("controller.start",),
)
PURE = [
    "policies.contract",
    "policies.words",
    "policies.fields",
    "policies.sent",
    "policies.allowance",
    "policies.aimd",
    "policies.fixed",
    "policies.recall*",
    "policies.headers",
    "policies.sprint",
    "policies.gradient",
    "policies.mimd",
    "controller.bucket",
    "controller.sse",
    "controller.outcome",
    "controller.records",
    "controller.keytable",
    "controller.done",
    "controller.breaker",
    "controller.budget",
    "controller.midnight",
    "controller.patience",
    "controller.retry",
    "controller.estimate",
    "controller.knowledge",
    "controller.charges",
    "controller.permits",
    "controller.ceiling",
    "controller.crowd",
    "controller.room",
    "controller.soundness",
    "controller.binding",
    "controller.worth",
    "controller.adaptive",
    "controller.rows",
    "controller.holds",
    "controller.dormant",
    "controller.dimensions",
    "controller.limiter",
    "controller.waiters",
    "controller.forms",
    "controller.lines",
    "controller.half",
    "controller.identity",
    "controller.settings",
    "controller.strict",
    "controller.dialects.*",
    "controller.continued",
    "controller.emission",
    "simulations.steps",
    "simulations.ranges",
    "simulations.slope",
    "simulations.curve",
    "simulations.standing",
    "simulations.sliding_log",
    "simulations.quota",
    "simulations.knobs",
    "simulations.profile",
    "simulations.asked",
    "simulations.answers",
    "simulations.dialects.*",
    "simulations.script",
    "simulations.charging",
    "simulations.production",
    "simulations.faults",
    "simulations.manners",
    "simulations.hinting",
    "simulations.limits",
    "simulations.census",
    "simulations.provider",
    "simulations.sizes",
    "simulations.client",
    "simulations.workload",
    "simulations.bounds",
    "simulations.limiter_client",
    "simulations.peers*",
    "simulations.hidden*",
    "simulations.oracle",
    "simulations.tally",
    "simulations.measures",
    "simulations.closed_loop",
]
IMPURE_IMPORTS = {"trio", "httpx", "httpcore", "h11", "time", "asyncio", "socket", "threading", "os", "subprocess"}
HTTPX_ONLY_IN = {  # the seam: moving to another HTTP client touches these
    "controller.upstream",
    "controller.attempt",
    "controller.tap",
    "controller.trouble",
    "controller.transport",
    "controller.connection",
    "controller.proxies",
    "controller.reach",
    "controller.job",  # hands a transport through
    "controller.cli",
    "simulations.transport",
}


def modules() -> dict[str, Path]:
    """Dotted name -> file, of everything in our packages; a package's face is named after the package."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """(dotted name, at the top of the file) of each import; `from a import b` gives a, and a.b if that is a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = set(tree.body)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            known = [name for name in names if name in MODULES]
            found += [(name, node in top) for name in known or [node.module]]
    return found


MODULES = modules()
CODE = {name: path for name, path in MODULES.items() if path.name != "__init__.py"}


def fits_entry(module: str, entry: str) -> bool:
    """A whole name, or the beginning of one."""
    return module == entry or (entry.endswith("*") and module.startswith(entry[:-1]))


def rung(module: str) -> int:
    """Which rung a module stands on; the longest entry that fits counts."""
    fits = [
        (len(entry), number) for number, entries in enumerate(LADDER) for entry in entries if fits_entry(module, entry)
    ]
    assert fits, f"{module} has no rung: add it to LADDER"
    return max(fits)[1]


@pytest.mark.parametrize("module", CODE)
def test_imports_go_down_only(module: str) -> None:
    for name, at_the_top in imports(CODE[module]):
        if name.split(".")[0] in PACKAGES and name in CODE:
            assert rung(name) <= rung(module), f"{module} imports {name}, which stands above it"
            assert at_the_top, f"{module} imports {name} inside a function: a circle in disguise"


@pytest.mark.parametrize("module", CODE)
def test_policies_know_nothing_of_ours_and_the_controller_nothing_of_the_simulator(module: str) -> None:
    heads = {name.split(".")[0] for name, _ in imports(CODE[module])}
    if module.startswith("policies."):
        assert not heads & {"controller", "simulations", "random", "secrets", *IMPURE_IMPORTS}
    if module.startswith("controller."):  # the roof looks its commands up by name: no run imports them for nothing
        assert "simulations" not in heads
    if module in ("simulations.quota", "simulations.sliding_log"):
        assert not {name for name, _ in imports(CODE[module])} & {"controller.bucket"}, (
            "a shared fault would cancel out"
        )


@pytest.mark.parametrize("module", [m for m in CODE if any(fits_entry(m, entry) for entry in PURE)])
def test_pure_modules_have_no_clock_no_input_and_no_output(module: str) -> None:
    heads = {name.split(".")[0] for name, _ in imports(CODE[module])}
    assert not heads & IMPURE_IMPORTS
    for node in ast.walk(ast.parse(CODE[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input"}, f"{module}:{node.lineno}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
            assert node.attr == "Random", f"{module}:{node.lineno} uses the module's own generator"


@pytest.mark.parametrize("module", CODE)
def test_httpx_is_known_at_its_seam_only(module: str) -> None:
    heads = {name.split(".")[0] for name, _ in imports(CODE[module])}
    if heads & {"httpx", "httpcore"}:
        assert module in HTTPX_ONLY_IN


def test_there_are_no_circles() -> None:
    graph = {name: {other for other, _ in imports(path) if other in CODE} for name, path in CODE.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for other in graph[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("module", [name for name in MODULES if name not in CODE])
def test_a_face_hands_names_on_and_does_nothing(module: str) -> None:
    body = ast.parse(MODULES[module].read_text(encoding="utf-8")).body
    assert isinstance(body[0], ast.Expr), "it says what the package is"
    assert all(isinstance(node, ast.ImportFrom | ast.Assign) for node in body[1:])


@pytest.mark.parametrize("module", CODE)
def test_every_file_opens_with_what_it_does(module: str) -> None:
    assert ast.get_docstring(ast.parse(CODE[module].read_text(encoding="utf-8")))
