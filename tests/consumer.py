"""A consumer of the stream of a run: reads its lines as the README tells and keeps what they make."""

from __future__ import annotations

import json
from collections.abc import Iterable

from attrs import define, field

from policies.contract import JSON


@define(eq=False)
class Consumer:
    """What a reader knows after each line. Fails on a line that comes after the result of its prompt."""

    texts: dict[str, str] = field(factory=dict)  # by key, of the first choice, without what was taken back
    results: dict[str, dict[str, JSON]] = field(factory=dict)
    restarts: list[dict[str, JSON]] = field(factory=list)
    deltas: int = 0

    def read(self, lines: Iterable[bytes]) -> Consumer:
        """Take lines in."""
        for line in lines:
            self.take(json.loads(line))
        return self

    def take(self, line: dict[str, JSON]) -> None:
        """Take one in."""
        key = str(line.get("key", str(line["id"]).removeprefix("batch_req_")))
        assert key not in self.results, "the result is the last line of its prompt"
        if "restart" in line:
            assert line["restart"] is True
            self.restarts.append(line)
            self.texts[key] = self.texts.get(key, "")[: int(str(line["kept"]))]
        elif "index" in line:
            self.deltas += 1
            assert line.get("delta", line.get("reasoning")), "an empty delta is not sent"
            if "delta" in line and line["index"] == 0:
                self.texts[key] = self.texts.get(key, "") + str(line["delta"])
        else:
            self.results[key] = line

    def agrees(self) -> bool:
        """Every answer is the text that was streamed before it."""
        return all(
            self.texts.get(key, "") == line["text"] for key, line in self.results.items() if line.get("status") == "ok"
        )
