"""The plug-in path: a stranger's policy in the daemon, the command, the pytest plug-in, the example as a package."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import attrs
import bad_policies
import pytest
from attrs import validators
from click.testing import CliRunner, Result

from controller.settings import Settings
from controller.telemetry import Exit
from policies import plugins, registry
from simulations import check as kit
from simulations.profile import load_profile
from simulations.provider import Provider
from simulations.virtual import VirtualRun, run_virtual

TESTS = Path(__file__).parent
EXAMPLE = TESTS.parent / "examples" / "policy_plugin"
PATIENCE = 300.0  # s; only a hang is slower


# -- the daemon


def run(policy: str, profile: str, count: int = 60) -> VirtualRun:
    lines = [json.dumps({"id": n, "prompt": f"prompt {n}"}).encode() for n in range(count)]
    return run_virtual(lines, Provider(load_profile(profile)), Settings(policy=policy))


@pytest.mark.parametrize("policy", ["Raises", "RaisesAtOnce", "AnswersNan", "RaisesOnRefusal"])
@pytest.mark.parametrize("profile", ["steady?words=3&rate=2&burst=2", "flaky?words=3"])
def test_a_policy_that_fails_costs_no_prompt(policy: str, profile: str) -> None:
    out = run(f"bad_policies:{policy}", profile)
    assert out.exit is Exit.OK
    assert sorted(int(str(result["id"])) for result in out.results) == list(range(60))
    assert {result["status"] for result in out.results} == {"ok"}


def test_its_fallback_is_in_the_decision_log_once() -> None:
    log = [json.loads(line) for line in run("bad_policies:Raises", "steady?words=3&rate=20&burst=20").decisions]
    assert [line["reason"] for line in log].count("fallback") == 1
    fallback = next(line for line in log if line["reason"] == "fallback")
    assert fallback["old"] == fallback["new"] == pytest.approx(2.0)
    after = log[log.index(fallback) + 1 :]
    assert all(line["new"] <= 2.0 for line in after)


# -- the command


@attrs.frozen(kw_only=True)
class ChoosyOptions:
    """What a stranger's options may look like."""

    anything: float = 1.0
    word: str = attrs.field(default="up", validator=validators.in_(("up", "down")), metadata={"help": "which way"})
    most: int = attrs.field(default=3, validator=validators.lt(9), metadata={"unit": "units", "help": "at once"})


def command(*arguments: str) -> Result:
    return CliRunner().invoke(kit.policies, arguments, standalone_mode=False)


def checked(*arguments: str) -> tuple[int, str]:
    result = command("check", *arguments)
    if result.exception is not None:
        return int(Exit.USAGE), str(result.exception)
    return result.return_value, result.output


def test_called_bare_it_lists_every_policy_with_its_options() -> None:
    result = command()
    assert result.return_value == 0
    assert "aimd: Additive increase, multiplicative decrease" in result.output
    assert "decrease_factor=0.7: new rate = factor * old rate; from 0.05 to 0.99" in result.output
    assert "start_rate=5.0 units/s: refill_rate before any answer; from 1e-06 to 1e+06" in result.output
    assert (
        "refill_rate=1.0 units/s: the rate, whatever the upstream answers; more than 0, at most 1e+06" in result.output
    )


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_every_option_is_listed_with_default_meaning_and_range(name: str) -> None:
    listed = command().output.partition(f"{name}: ")[2].splitlines()[1:]
    options = attrs.fields(registry.find(name).options_class)
    assert [line.split("=")[0].strip() for line in listed[: len(options)]] == [each.name for each in options]
    for line in listed[: len(options)]:
        assert re.fullmatch(r"    \w+=[\d.e-]+( [^:]+)?: .+; (from \S+ to|more than \S+, at most) \S+", line), line


def test_an_option_without_a_bound_or_with_a_choice_is_listed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_policies.Plain, "options_class", ChoosyOptions)
    monkeypatch.setitem(registry.BUILT_IN, "plain", bad_policies.Plain)
    assert command().output.partition("plain: ")[2].splitlines()[1:4] == [
        "    anything=1.0: ",
        "    word=up: which way; one of up, down",
        "    most=3 units: at once; less than 9",
    ]


def test_a_plug_in_that_cannot_be_imported_is_listed_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("broken", "no_such_module:Law", registry.GROUP)])
    monkeypatch.setattr(plugins, "entry_points", lambda group: points.select(group=group))
    result = command()
    assert result.return_value == 0
    assert "broken: policy 'broken' can't be imported: ModuleNotFoundError: No module named" in result.output
    assert "fixed: A constant rate" in result.output


def test_a_policy_that_holds_its_laws_is_passed() -> None:
    code, output = checked("fixed", "--examples", "5", "--law", "pace_can_be_kept", "--law", "limit_is_found")
    assert code == 0
    assert output.startswith("held      pace_can_be_kept: Every pace is finite")
    assert "declined  limit_is_found" in output
    assert "its reason: its rate is the user's" in output
    assert output.endswith("1 held, 0 broken, 1 declined\n")


def test_a_broken_law_gives_exit_code_1_the_case_and_the_command_that_finds_it_again() -> None:
    arguments = ["bad_policies:AnswersNan", "--policy-option", "start_rate=3", "--examples", "100", "--seed", "4"]
    code, output = checked(*arguments, "--law", "pace_can_be_kept")
    assert code == 1
    assert "3 units/s, capacity 1 (start)" in output
    again = next(line for line in output.splitlines() if "again: " in line).partition("again: ")[2]
    assert again.split()[:3] == ["tidegate", "policies", "check"]
    assert checked(*again.split()[3:]) == (code, output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["aimed"], 'did you mean "aimd"'),
        (["aimd", "--policy-option", "start_rate"], "--policy-option 'start_rate' is not KEY=VALUE"),
        (["aimd", "--policy-option", "start_rate=-1"], "policy option out of range"),
        (["aimd", "--law", "pace"], "there is no law 'pace'"),
        (["bad_policies:CannotBeMade"], "the policy can't be made: TypeError: "),
        (["bad_policies:ClaimsOneWord"], "claims must be a set of names of laws, not 'success_never_lowers'"),
        (["bad_policies:DeclinesWithoutReason"], "declines must map names of laws to reasons, not {'limit_is_found'}"),
        (["bad_policies:ClaimsNonsense"], "claims the law 'success_never_lower', which there is not"),
    ],
)
def test_what_the_user_can_mend_is_said_in_one_line(arguments: list[str], message: str) -> None:
    code, output = checked(*arguments)
    assert code == 2
    assert message in output
    assert "\n" not in output


def test_without_hypothesis_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "find_spec", lambda _: None)
    assert checked("aimd") == (2, "the laws need Hypothesis: pip install 'tidegate[check]'")
    assert command().return_value == 0, "listing needs none"


def test_the_command_imports_no_hypothesis_before_it_checks() -> None:
    code = "import sys, simulations.check, simulations.pytest_plugin; sys.exit('hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- the pytest plug-in


def run_pytest(folder: Path, *arguments: str) -> str:
    """pytest with our plug-in alone, in a folder of its own."""
    environment = {"PYTHONPATH": f"{TESTS}:{TESTS.parent}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    call = [sys.executable, "-m", "pytest", "-p", "simulations.pytest_plugin", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        call, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return f"{done.stdout}{done.stderr}\nexit code {done.returncode}"


def test_each_law_is_an_item_and_a_declined_one_is_skipped(tmp_path: Path) -> None:
    output = run_pytest(
        tmp_path, "--policy", "bad_policies:Declines", "--policy-examples", "5", "-v", "-k", "pace or step"
    )
    assert "bad_policies:Declines::pace_can_be_kept PASSED" in output
    assert "bad_policies:Declines::step_up_is_followed SKIPPED (declined: it onl" in output
    assert "exit code 0" in output


def test_a_broken_law_fails_with_its_case_and_no_traceback(tmp_path: Path) -> None:
    output = run_pytest(
        tmp_path, "--policy", "bad_policies:CutsPerRefusal", "-k", "stale_changes_nothing", "--policy-seed", "1"
    )
    assert "broken    stale_changes_nothing: After a cut" in output
    assert "attempt 1 refused, scope dimension: 0.98 units/s" in output
    assert "again: pytest -p simulations.pytest_plugin" in output
    assert "Traceback" not in output
    assert "judge.py" not in output
    assert "exit code 1" in output


def test_a_policy_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, "--policy", "bad_policies:Nothing")
    assert "ERROR: --policy bad_policies:Nothing: policy 'bad_policies:Nothing' can't be imported" in output
    assert "exit code 4" in output


def test_without_its_option_the_plug_in_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("import sys\n\ndef test_one():\n    assert 'policies' not in sys.modules\n")
    assert "1 passed" in run_pytest(tmp_path)


# -- the example


@pytest.mark.slow
def test_the_example_installs_is_found_by_name_and_passes_its_own_tests(tmp_path: Path) -> None:
    source, venv = tmp_path / "policy_plugin", tmp_path / "venv"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    python = _make_venv(venv)

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [python, *arguments], cwd=source, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call("-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", "--no-deps", str(source))
    (source / "tidegate_gentle.py").unlink()  # what is found from here on is what was installed
    listed = call("-c", "from simulations.check import policies; policies([])")
    assert "gentle: Additive increase, multiplicative decrease, and a cap on growth per minute" in listed
    assert "growth_per_minute=1.5: most that the rate is multiplied by in a minute" in listed
    call("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_gentle.py")
    prompts = source / "prompts.jsonl"
    prompts.write_text('"one"\n"two"\n')
    again = ["run", str(prompts), "--base-url", "sim:steady?words=3", "--policy", "gentle"]
    answered = call("-m", "controller.start", *again, "--policy-option", "start_rate=100")
    assert len(answered.splitlines()) == 2


def _make_venv(venv: Path) -> Path:
    """A virtual environment without downloads: what ours has is behind what it gets installed itself."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=PATIENCE)
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    site = next(venv.glob("lib/python*/site-packages"))
    (site / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return venv / "bin" / "python"
