"""What a run would do, from its input alone: nothing is sent and no file is touched."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping

import trio
from attrs import define, field

from controller.assemble import intake_for, request_defaults
from controller.intake import Intake, read_prompts
from controller.journal import STDOUT, check_output
from controller.records import Prompt, Result
from controller.repair import Ledger, look
from controller.settings import Settings
from controller.sources import check_readable, source_of
from controller.telemetry import Exit
from policies.contract import JSON

BYTES_PER_TOKEN = 4.0  # a first guess for prose; a tokenizer may say half or double for code, digits or other scripts
MOST_FAULTS = 5  # bad lines that are shown


@define(eq=False)
class DryRun:
    """Reads the input as a run would and counts."""

    settings: Settings
    intake: Intake
    defaults: Mapping[str, JSON]
    models: Counter[str] = field(factory=Counter)
    input_bytes: int = 0
    most_output: int = 0  # sum of max_tokens where a line has one
    faults: list[str] = field(factory=list)

    async def accept_prompt(self, prompt: Prompt) -> None:
        """Count a prompt that would be sent."""
        request = {**self.defaults, **prompt.request}
        self.intake.open.clear()  # nothing will be written
        self.models[str(request.get("model") or "(none: give --model)")] += 1
        asked = request.get("messages", request.get("input"))
        self.input_bytes += len(json.dumps(asked, ensure_ascii=False).encode("utf-8", "replace"))
        most = request.get("max_completion_tokens", request.get("max_tokens"))
        self.most_output += most if isinstance(most, int) else 0

    async def accept_result(self, result: Result) -> None:
        """Keep the first faults."""
        if result.error is not None and len(self.faults) < MOST_FAULTS:
            self.faults.append(f"{result.prompt.source}:{result.prompt.line}: {result.error.message}")

    def lines(self) -> list[str]:
        """What there is to say."""
        intake = self.intake
        tokens = self.input_bytes / BYTES_PER_TOKEN
        said = [
            f"{intake.read} lines: {intake.prompts} to send, {intake.bad} bad, {intake.duplicates} duplicates",
            f"{intake.conflicts} have an id that was used before for other content",
            f"of an earlier run {intake.skipped_done} ok, {intake.skipped_failed} failed: skipped",
            f"input forms: {_counts(intake.forms)}",
            f"models: {_counts(self.models)}",
            f"about {tokens:.0f} input tokens (bytes / {BYTES_PER_TOKEN:g}); max_tokens: {self.most_output} in all",
        ]
        if intake.carried:
            said.append(f"not sent, carried into metadata instead: {', '.join(sorted(intake.carried))}")
        return [*said, *self.faults]


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common()) or "none"


def dry_run(settings: Settings, sources: tuple[str, ...], say: Callable[[str], None]) -> Exit:
    """Read everything, say what a run would do; raises ValueError, one line, as a run would."""
    for source in sources:
        check_readable(source)
    check_output(settings.output or STDOUT, sources)
    earlier = Ledger() if settings.output is None else look(settings.output)
    defaults = request_defaults(settings, settings.base_url or "")
    run = DryRun(settings, intake_for(settings, earlier), defaults)
    opened = [source_of(name) for name in sources]
    try:
        trio.run(read_prompts, opened, run.intake, run.accept_prompt, run.accept_result)
    except OSError as error:
        raise ValueError(f"the prompts can't be read any further: {error}") from error
    for line in run.lines():
        say(line)
    return Exit.OK
