"""Which URL speaks which dialect, and that the README tells the same as the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.dialects.table import DIALECTS, dialect_for, markdown

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- dialects: made by controller/dialects/table.py, held by a test -->\n", "\n<!-- /dialects -->"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://api.openai.com/v1/responses", "responses"),
        ("https://api.anthropic.com", "anthropic"),
        ("https://api.anthropic.com/v1", "anthropic"),
        ("https://api.deepseek.com/anthropic", "anthropic"),
        ("https://api.deepseek.com", "deepseek"),
        ("https://api.anthropic.com/v1/messages", "anthropic"),
        ("http://gateway.local/v1/messages", "anthropic"),
        ("https://api.groq.com/openai/v1/chat/completions", "groq"),
        ("https://generativelanguage.googleapis.com", "gemini"),
        ("https://generativelanguage.googleapis.com/v1beta", "gemini"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini-openai"),
        ("http://gateway.local/gemini/v1beta", "gemini"),
        ("https://aiplatform.googleapis.com/v1/projects/p/locations/global", "vertex"),
        ("https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/us-central1", "vertex"),
        ("https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/l/endpoints/openapi", "openai"),
        ("https://n.openai.azure.com/openai/deployments/d?api-version=2024-10-21", "azure"),
        ("https://n.openai.azure.com/openai/v1/responses", "azure-responses"),
        ("https://n.services.ai.azure.com/anthropic", "anthropic"),
        ("http://gateway.local/openai/deployments/d", "azure"),
        ("https://api.mistral.ai/v1", "mistral"),
        ("https://api.together.xyz/v1", "together"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://evil-api.anthropic.com.example.org/v1", "openai"),
        ("https://notopenrouter.ai/v1", "openai"),
        ("http://127.0.0.1:8000/v1", "openai"),
    ],
)
def test_the_dialect_is_guessed_from_host_and_path(url: str, name: str) -> None:
    assert dialect_for(None, url).name == name


def test_each_dialect_stands_under_its_own_name() -> None:
    assert all(name == dialect.name for name, dialect in DIALECTS.items())


def test_the_readme_holds_the_table_of_the_code() -> None:
    text = README.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == markdown()


def test_the_table_has_a_row_for_each_dialect_and_no_cell_is_empty() -> None:
    lines = markdown().split("\n")
    assert len(lines) == len(DIALECTS) + 2
    assert not any("|  |" in line for line in lines)
