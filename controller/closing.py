"""What the user is told before a run and after it: what was found and repaired, what is left, and the proof."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from controller.charges import Meters
from controller.decisions import DecisionLog
from controller.intake import Intake
from controller.journal import JournalError
from controller.proof import Proof, Summary, prove
from controller.spool import SUFFIX
from controller.store import Store
from controller.telemetry import Exit, Stop, Tally


def opening_lines(store: Store) -> list[str]:
    """What an earlier run left, and in which state."""
    ledger, name = store.journal.ledger, store.journal.name
    lines = []
    if ledger.torn_bytes:
        lines.append(f"{name}: cut off a torn last line of {ledger.torn_bytes} bytes; its prompt is sent again")
    if ledger.damaged:
        lines.append(f"{name}: {ledger.damaged} lines are no results and were skipped")
    if store.spool is not None and store.spool.damaged:
        lines.append(f"{store.spool.path}: {store.spool.damaged} torn or damaged lines were skipped")
    if store.spool is not None and store.spool.left:
        lines.append(f"{store.spool.path}: {len(store.spool.left)} lines of an earlier run are taken up first")
    if store.underway is not None and store.underway.lost:
        lost = len(store.underway.lost)
        lines.append(f"{lost} attempts were under way when an earlier run died or was stopped: they may be paid again")
    return lines


@frozen(kw_only=True)
class Ending:
    """What a run came to, for its closing lines and its exit code."""

    intake: Intake
    store: Store
    tally: Tally
    stop: Stop
    meters: Meters
    logs: list[DecisionLog]

    def close(self, code: Exit, seconds: float, summary: str | None) -> tuple[Exit, list[str]]:
        """Make the results durable, recount them, write the summary; the exit code and the last lines."""
        code, lines = self._made_durable(code, self._remarks())
        proof = prove(self.intake, self.tally, self.store.journal.recount())
        self.store.complete = proof.pending == 0 and self.intake.exhausted and self.stop.code is None
        if code is Exit.OK and (proof.failed or self.intake.skipped_failed):
            code = Exit.SOME_FAILED
        name = self.store.journal.name
        if proof.missing:
            code = _spoilt(code)
            lines.append(f"{name} was changed while the run wrote to it; what is missing is sent again next time")
            if self.store.spool is not None and self.store.spool.retain():
                lines[-1] += f", of a pipe what {self.store.spool.path} still holds"
        if proof.pending and self.stop.code is None and code in (Exit.OK, Exit.SOME_FAILED):
            code = Exit.FAULT
            lines.append("prompts are left without a result: a fault in tidegate; run the same command again")
        told = self._summary(code, proof, seconds)
        if summary is not None and (fault := _write(summary, told.dump())) is not None:
            code = _spoilt(code)
            lines.append(f"--summary {summary} can't be written: {fault.strerror}")
        return code, [*lines, *self.meters.words(), told.line(), proof.line(name)]

    def _made_durable(self, code: Exit, lines: list[str]) -> tuple[Exit, list[str]]:
        """The results, and what the next run needs beside them."""
        journal, spool = self.store.journal, self.store.spool
        try:
            if (loss := journal.look_after_now()) is not None and self.stop.reason != loss.words:
                lines.append(loss.words)
            journal.sync_now()
        except JournalError as error:
            code, lines = Exit.LOCAL_IO, [*lines, *([str(error)] if str(error) != self.stop.reason else [])]
        try:
            if spool is not None:
                spool.settle()
        except OSError as error:
            keys, lost = spool.give_up() if spool is not None else ([], 0)
            self.intake.take_back(keys)
            again = f": {lost} lines read from a pipe could not be kept: send them again" if lost else ""
            code, lines = _spoilt(code), [*lines, f"cannot write {journal.name}{SUFFIX}: {error.strerror}{again}"]
        return code, lines

    def _remarks(self) -> list[str]:
        intake, lines = self.intake, []
        if intake.carried:
            lines.append(f"not sent, carried into metadata instead: {', '.join(sorted(intake.carried))}")
        if intake.changed:
            lines.append(
                f"{intake.changed} lines are new under an id that has a result for other content, "
                f"first {intake.first_changed}: each got a result of its own"
            )
        if intake.skipped_done or intake.skipped_failed:
            lines.append(f"of an earlier run {intake.skipped_done} ok, {intake.skipped_failed} failed")
        lines += [f"--decisions: not all was written: {log.fault}" for log in self.logs if log.fault]
        underway = self.store.underway
        if underway is not None and underway.fault is not None:
            lines.append(f"{underway.path}: what a crash costs can't be told: {underway.fault.strerror}")
        if self.stop.reason is not None:
            resumable = self.store.journal.resumable
            again = "run the same command again to go on" if resumable else "a run to stdout can't be resumed"
            lines.append(f"stopped: {self.stop.reason}; {again}")
        return lines

    def _summary(self, code: Exit, proof: Proof, seconds: float) -> Summary:
        tally, underway = self.tally, self.store.underway
        return Summary(
            exit_code=code,
            stopped=self.stop.reason,
            proof=proof,
            this_run_ok=tally.ok,
            this_run_failed=tally.failed,
            changed=self.intake.changed,
            attempts=tally.attempts,
            throttled=tally.throttled,
            paid_again=None if underway is None else underway.paid_again,
            this_run_paid_again=None if underway is None else underway.by_this_run,
            input_tokens=tally.input_tokens,
            output_tokens=tally.output_tokens,
            seconds=round(seconds, 3),
        )


def _spoilt(code: Exit) -> Exit:
    """By a local file; the first reason to stop still counts."""
    return Exit.LOCAL_IO if code in (Exit.OK, Exit.SOME_FAILED) else code


def _write(path: str, data: bytes) -> OSError | None:
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        return error
    return None
