"""CsvDialect: how a CSV file is written."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from lightning_mp.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvDialect:
    r"""How a CSV file is written; declared, never guessed, for guesses lose values in silence.

    Args:
        delimiter: One ASCII character between fields; a tab may be written `\t`.
        quote: One ASCII character round fields that hold delimiters or line ends; doubled, it stands for itself.
        encoding: Python's name of the encoding: `utf-8` (a byte-order mark is dropped), `utf-16`, `latin-1`, `cp1252`.
        decimal: Decimal mark of numbers, `.` or `,`.
        missing: Texts that stand for a missing value beside the empty field, in every column.

    Raises:
        ConfigurationError: One of them cannot work.
    """

    delimiter: str = ","
    quote: str = '"'
    encoding: str = "utf-8"
    decimal: str = "."
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.delimiter == "\\t":
            object.__setattr__(self, "delimiter", "\t")
        for name, value in (("delimiter", self.delimiter), ("quote", self.quote)):
            if len(value) != 1 or not value.isascii() or value in "\r\n\0":
                raise ConfigurationError(f"`csv.{name}` must be one ASCII character, got {value!r}", "leave it out")
        if self.delimiter == self.quote:
            raise ConfigurationError(f"`csv.delimiter` and `csv.quote` are both {self.quote!r}", "change one of them")
        if self.decimal not in (".", ","):
            raise ConfigurationError(f"`csv.decimal` must be `.` or `,`, got {self.decimal!r}", "leave it out")
        try:
            codecs.lookup(self.encoding)
        except LookupError as error:
            problem = f"`csv.encoding`: there is no encoding {self.encoding!r}"
            raise ConfigurationError(problem, "use utf-8, utf-16, latin-1 or cp1252") from error
