"""What tokens cost, by the tables of genai-prices (extra [prices]), which come with the package and are never updated
over the network."""

from __future__ import annotations

import importlib
from datetime import UTC, datetime
from typing import Protocol

from attrs import define

from controller.outcome import Usage
from controller.records import Prompt


class _Tables(Protocol):
    """The part of the package that is used."""

    def Usage(self, *, input_tokens: int, output_tokens: int) -> object: ...  # noqa: N802 - its name

    def calc_price(
        self, usage: object, model_ref: str, *, provider_api_url: str | None, genai_request_timestamp: datetime
    ) -> _Priced: ...


class _Priced(Protocol):
    total_price: float  # a Decimal


@define(eq=False)
class Prices:
    """Of one upstream. began: the instant of the run, seconds since the epoch; prices are those of then."""

    tables: _Tables
    base_url: str
    began: float

    @classmethod
    def of(cls, base_url: str, began: float) -> Prices:
        """ValueError, one line, without the extra."""
        try:
            tables: _Tables = importlib.import_module("genai_prices")
        except ImportError as error:
            raise ValueError("--max-cost needs the extra: install tidegate[prices]") from error
        return cls(tables, base_url, began)

    def price(self, prompt: Prompt, usage: Usage) -> float:
        """In $. ValueError for a model that has no price: what it costs can't be bounded."""
        model = str(prompt.request.get("model"))
        counted = self.tables.Usage(input_tokens=usage.input_tokens or 0, output_tokens=usage.output_tokens or 0)
        began = datetime.fromtimestamp(self.began, UTC)
        for url in (self.base_url, None):  # a gateway is no provider of the tables: then the model alone must do
            try:
                priced = self.tables.calc_price(counted, model, provider_api_url=url, genai_request_timestamp=began)
                return float(priced.total_price)
            except LookupError:
                continue
        raise ValueError(f"--max-cost: there is no price for the model {model}")
