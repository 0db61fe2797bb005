"""Failures of other people's tools, chapter 8: input and results as files and pipes; real processes, real sockets."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import PATIENCE, ids, results, run, start, statistics, upstream, write_prompts
from wire_answers import DONE, FINE, chunk, event, response, said
from wired import wired

from controller.telemetry import Exit
from policies.contract import JSON

FAST = ("--policy-option", "start_rate=50")


@pytest.fixture(scope="module")
def quick() -> Iterator[str]:
    with upstream() as url:
        yield url


def attempts(url: str) -> int:
    """What the upstream has seen so far."""
    return int(str(statistics(url)["attempts"]))


def damaged(whole: bytes, how: str) -> bytes:
    """A results file after a crash or an editor."""
    lines = whole.splitlines(keepends=True)
    match how:
        case "torn":
            return whole + b'{"id":"7","te'
        case "torn in a character":
            return whole + '{"id":"7","text":"é'.encode()[:-1]
        case "no newline":
            return whole[:-1]
        case "blank line":
            return whole + b"\n"
        case "damaged in the middle":
            return b"".join([lines[0], b'{"id": 1, "te\n', *lines[1:]])
        case "no text at all":
            return b"".join([lines[0], b"\xff\xfe\x00\n", *lines[1:]])
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize("how", ["torn", pytest.param("torn in a character", marks=pytest.mark.slow), "no newline"])
def test_c90_the_end_of_a_killed_run_is_repaired_before_anything_is_appended(
    how: str, tmp_path: Path, quick: str
) -> None:
    # https://github.com/NousResearch/hermes-agent/pull/112575
    prompts, out = write_prompts(tmp_path / "p.jsonl", 6), tmp_path / "r.jsonl"
    arguments = (prompts, "--base-url", quick, "--model", "m", "-o", out, *FAST)
    run(*arguments, "--first", "3")
    before = out.read_bytes()
    out.write_bytes(damaged(before, how))
    seen = attempts(quick)
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes().startswith(before)
    assert ids(results(out)) == list(range(6)), "every line is whole, none is there twice"
    assert attempts(quick) - seen == 3, "what was answered is not paid for again"


@pytest.mark.parametrize(
    "how",
    [
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("torn", "blank line")),
        "damaged in the middle",
        "no text at all",
    ],
)
def test_c91_bad_lines_are_counted_and_never_in_the_way(how: str, tmp_path: Path, quick: str) -> None:
    # https://github.com/sipyourdrink-ltd/bernstein/pull/5919
    prompts, out = write_prompts(tmp_path / "p.jsonl", 6), tmp_path / "r.jsonl"
    arguments = (prompts, "--base-url", quick, "--model", "m", "-o", out, *FAST)
    run(*arguments, "--first", "3")
    out.write_bytes(damaged(out.read_bytes(), how))
    done = run(*arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    whole = [line for line in out.read_bytes().split(b"\n") if line.startswith(b'{"id":') and line.endswith(b"}")]
    assert ids([json.loads(line) for line in whole]) == list(range(6))
    if how in ("damaged in the middle", "no text at all"):
        assert "1 lines are no results" in done.stderr


def test_c93_records_end_at_lf_only_on_both_reading_ends(tmp_path: Path, quick: str) -> None:
    # https://github.com/PrimeIntellect-ai/verifiers/pull/1644
    prompts, out = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
    exotic = "a\x85b\u2028c\u2029d"
    lines = [json.dumps({"id": exotic + str(n), "prompt": exotic}, ensure_ascii=False) for n in range(3)]
    prompts.write_bytes("\r\n".join([*lines, ""]).encode())
    arguments = (prompts, "--base-url", quick, "--model", "m", "-o", out, *FAST)
    assert run(*arguments).returncode == 0
    assert ids(results(out)) == [exotic + str(n) for n in range(3)]
    # As another writer would have left it: every character as itself.
    out.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in results(out)), newline="")
    assert "\x85" in out.read_bytes().decode()
    again = run(*arguments)
    assert (again.returncode, "0 attempts" in again.stderr) == (0, True)
    assert len(results(out)) == 3


def test_c93_lines_of_text_end_at_lf_only(tmp_path: Path, quick: str) -> None:
    prompts, out = tmp_path / "p.txt", tmp_path / "r.jsonl"
    prompts.write_bytes("one\x0btwo\x0cthree\x1cfour\x85five\nsix\n".encode())
    done = run(prompts, "--base-url", quick, "--model", "m", "-o", out, "--input-format", "text", *FAST)
    assert (done.returncode, len(results(out))) == (0, 2)


def test_c94_a_byte_order_mark_is_dropped_and_utf_16_is_named(tmp_path: Path, quick: str) -> None:
    # https://github.com/BerriAI/litellm/pull/37776
    marked, wide, out = tmp_path / "p.jsonl", tmp_path / "w.jsonl", tmp_path / "r.jsonl"
    marked.write_bytes(b'\xef\xbb\xbf{"id": 1, "prompt": "x"}\r\n\xef\xbb\xbf{"id": 2, "prompt": "y"}\r\n')
    assert run(marked, "--base-url", quick, "--model", "m", "-o", out, *FAST).returncode == 0
    assert ids(results(out)) == [1, 2]
    for encoding in ("utf-16", "utf-16-le"):
        wide.write_bytes('{"id": 3, "prompt": "x"}\r\n'.encode(encoding))
        done = run(wide, "--base-url", quick, "--model", "m")
        first = json.loads(done.stdout.splitlines()[0])
        assert (done.returncode, first["line"], first["error"]["kind"]) == (1, 1, "input")
        assert "UTF-16" in first["error"]["message"]
        assert "iconv" in first["error"]["message"]


def test_c96_no_line_with_a_doubled_or_missing_id_is_lost(tmp_path: Path, quick: str) -> None:
    # https://github.com/llm-d/llm-d-batch-gateway/issues/147
    prompts, out = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
    lines: list[JSON] = [
        {"id": 1, "prompt": "a"},
        {"id": 1, "prompt": "another"},
        {"id": 2, "prompt": "b"},
        {"id": 2, "prompt": "b"},
        {"prompt": "c"},
        {"prompt": "c"},
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = (prompts, "--base-url", quick, "--model", "m", "-o", out, *FAST)
    done = run(*arguments)
    by_line = {line["line"]: line for line in results(out)}
    assert (done.returncode, sorted(by_line, key=str)) == (1, [1, 2, 3, 5, 6])
    told = str(by_line[2]["error"])
    assert ":1" in told, "the conflict names the line that had the id first; its own is in `line`"
    assert "1 duplicate" in done.stderr, "the same line twice is one prompt, and is counted"
    again = run(*arguments)
    assert "0 attempts" in again.stderr
    assert len(results(out)) == 5


def test_c98_lines_of_megabytes_cost_their_length_and_no_neighbour(quick: str) -> None:
    # https://github.com/NousResearch/hermes-agent/issues/31417
    text = json.dumps({"id": 1, "prompt": "long " * 1_000_000}) + '\n{"id": 2, "prompt": "short"}\n'
    done = run("-", "--base-url", quick, "--model", "m", text=text)
    assert done.returncode == 0, done.stderr
    assert ids([json.loads(line) for line in done.stdout.splitlines()]) == [1, 2]


@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic", "gemini"])
def test_c98_an_event_of_a_megabyte_is_an_event(dialect: str) -> None:
    out = wired("steady?words=3&manners=long-line", 2, dialect=dialect)
    assert (out.exit, len(out.texts)) == (Exit.OK, 2)
    assert all(len(str(text)) > 300_000 for text in out.texts.values())
    assert wired(response(*said("x" * 300_000, dialect)), dialect=dialect).result["text"] == "x" * 300_000


@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic", "gemini"])
@pytest.mark.parametrize(("manners", "ending"), [("split-surrogates", "🌊"), ("lone-surrogate", "\ufffd")])
def test_c99_half_a_character_never_ends_the_run(manners: str, ending: str, dialect: str) -> None:
    # https://github.com/strands-rl/strands-env/pull/211
    out = wired(f"steady?words=3&manners={manners}", 5, dialect=dialect)
    assert (out.exit, len(out.texts)) == (Exit.OK, 5)
    assert all(str(text).rstrip().endswith(ending) for text in out.texts.values())


def test_c99_an_orphan_in_every_place_of_an_answer_is_written_all_the_same() -> None:
    half = "\ud835"
    first: JSON = {"id": half, "model": half, "choices": [{"delta": {"content": half, half: half}}], half: [half]}
    out = wired([response(event(first), chunk(finish="stop"), DONE), FINE], 2, keep_response=True)
    assert (out.exit, len(out.texts)) == (Exit.OK, 2)


def test_c99_an_orphan_in_a_prompt_reaches_the_upstream_and_the_result(tmp_path: Path, quick: str) -> None:
    done = run("-", "--base-url", quick, "--model", "m", text='{"id": "\\ud835", "prompt": "\\ud835"}\n"fine"\n')
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert ("Traceback" in done.stderr, len(lines)) == (False, 2)
    assert all(line["status"] == "ok" for line in lines), lines


def test_c100_a_reader_that_leaves_ends_the_run_quietly_and_early(tmp_path: Path) -> None:
    # https://github.com/Comfy-Org/comfy-cli/pull/615
    prompts = write_prompts(tmp_path / "p.jsonl", 300)
    with upstream("steady?rate=50&burst=50&latency=0.02&words=3") as url:
        process = start(prompts, "--base-url", url, "--model", "m")
        head = subprocess.run(["head", "-1"], stdin=process.stdout, capture_output=True, check=True, timeout=PATIENCE)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
        process.stderr.close()
        assert process.wait(PATIENCE) == 5
        assert attempts(url) < 300
    assert json.loads(head.stdout)["status"] == "ok"
    assert "Traceback" not in errors
    assert "Usage" not in errors
    assert "pipe" in errors.lower()


def test_c100_with_a_file_beside_it_what_was_paid_is_kept(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 200), tmp_path / "r.jsonl"
    with upstream("steady?rate=50&burst=50&latency=0.3&words=3") as url:
        arguments = (prompts, "--base-url", url, "--model", "m", "-o", out, *FAST)
        process = start(*arguments, "--emit", "delta")
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE) == 5
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
        process.stderr.close()
        assert len(results(out)) == int(str(statistics(url)["completed"])) > 0
