"""The closing proof: what became of every line that was read, counted again from the results file.

Whether a prompt has its result, and no second one, is not asked of the counters that were kept while running, since
they would share their faults with what they counted: it is looked up in what the file holds when the run is over.
"""

from __future__ import annotations

import json

from attrs import asdict, frozen

from controller.intake import Intake
from controller.repair import ANSWERED, Ledger
from controller.telemetry import Tally


@frozen(kw_only=True)
class Proof:
    """read = ok + failed + pending + duplicates + missing, if the results are in a file; else as the counters say.

    ok and failed: of the lines read, whichever run answered them. missing: has no result, and this run does not know
    it as pending. double: lines in the file beyond the one of its prompt. None: not to be known, as results went to a
    pipe. other: prompts with a result that no line of this input asked for.
    """

    read: int
    ok: int
    failed: int
    pending: int
    duplicates: int
    missing: int | None = None
    double: int | None = None
    damaged: int | None = None
    other: int | None = None

    def line(self, name: str) -> str:
        """For the user. name: of the results file."""
        said = (
            f"{self.read} read: {self.ok} ok, {self.failed} failed, {self.pending} pending, "
            f"{self.duplicates} duplicates"
        )
        if self.missing is None:
            return f"{said}; {name} can't be read again to recount them"
        return f"{said}; recounted from {name}: missing {self.missing}, double {self.double}"


def prove(intake: Intake, tally: Tally, ledger: Ledger | None) -> Proof:
    """ledger: what the results file holds now, None where there is none to read."""
    if ledger is None:
        handed_on = intake.prompts + intake.bad + intake.conflicts
        return Proof(
            read=intake.read,
            ok=tally.ok,
            failed=tally.failed,
            pending=handed_on - tally.done,
            duplicates=intake.duplicates,
        )
    ok = failed = pending = missing = 0
    for key in intake.keys_read():
        flags = ledger.keys.get(key)
        if flags is not None:
            ok, failed = ok + bool(flags[0] & ANSWERED), failed + (not flags[0] & ANSWERED)
        elif key in intake.open:
            pending += 1
        else:
            missing += 1
    return Proof(
        read=intake.read,
        ok=ok,
        failed=failed,
        pending=pending,
        duplicates=intake.duplicates,
        missing=missing,
        double=ledger.double,
        damaged=ledger.damaged,
        other=len(ledger.keys) - ok - failed,
    )


@frozen(kw_only=True)
class Summary:
    """What --summary writes. attempts to output_tokens: of this run. paid_again: attempts that earlier crashes and
    stops may have cost, of all runs since the results were last complete, and this_run_paid_again of this one; None
    without a results file. changed: lines with an id that has a result for other content."""

    exit_code: int
    stopped: str | None
    proof: Proof
    this_run_ok: int
    this_run_failed: int
    changed: int
    attempts: int
    throttled: int
    paid_again: int | None
    this_run_paid_again: int | None
    input_tokens: int
    output_tokens: int
    seconds: float

    def line(self) -> str:
        """For the user: what this run did."""
        count = self.this_run_paid_again
        again = f", {count} paid again after a crash or a stop" if count else ""
        return (
            f"this run: {self.this_run_ok} ok, {self.this_run_failed} failed; {self.attempts} attempts, "
            f"{self.throttled} throttled{again}; "
            f"{self.input_tokens} tokens in, {self.output_tokens} out; {self.seconds:.1f} s"
        )

    def dump(self) -> bytes:
        """One JSON object, the proof's fields beside the others."""
        value = asdict(self, recurse=False)
        proof = asdict(value.pop("proof"))
        return json.dumps(proof | value, ensure_ascii=False, indent=2).encode() + b"\n"
