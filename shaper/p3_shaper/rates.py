"""Rates and sizes as people write them. A unit is required, so that bits and bytes never mix."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_PREFIXES = {**_DECIMAL, **_BINARY}

_RATE_UNITS = {f"{prefix}bit": factor for prefix, factor in _PREFIXES.items()}
_SIZE_UNITS = {f"{prefix}b": factor for prefix, factor in _PREFIXES.items()}

# So many digits that none is out of reach, and few enough for int().
_QUANTITY = re.compile(r"(?P<number>\d{1,30}(?:\.\d{1,30})?)\s*(?P<unit>[a-z/]*)", re.ASCII)

MAX_BITS_PER_SECOND = 10 * 10**12
"""Beyond any link: a larger number is a unit mistaken for another."""


class RateError(ValueError):
    """A text that is not a rate; the message says what to write instead."""


class SizeError(ValueError):
    """A text that is not a number of bytes; the message says what to write instead."""


@dataclass(frozen=True, slots=True, order=True)
class Rate:
    """A rate in bits a second, at least 8 (the kernel counts whole bytes a second).

    `str()` gives the exact text that `parse_rate` reads back. Raises RateError out of range.
    """

    bits_per_second: int

    def __post_init__(self) -> None:
        if not 8 <= self.bits_per_second <= MAX_BITS_PER_SECOND:
            raise RateError(
                f"a rate of {self.bits_per_second} bits a second is out of range: "
                "choose 8bit to 10tbit"
            )

    @classmethod
    def from_bytes_per_second(cls, bytes_per_second: int) -> Self:
        """The rate that the kernel means by `bytes_per_second`."""
        return cls(8 * bytes_per_second)

    @property
    def bytes_per_second(self) -> int:
        """Whole bytes a second, rounded down: what tc's structures hold."""
        return self.bits_per_second // 8

    def share(self, part: float | Fraction) -> Rate:
        """`part` (0…1) of this rate in whole bytes a second, at least one, rounded down."""
        return Rate.from_bytes_per_second(max(1, int(self.bytes_per_second * Fraction(part))))

    def whole_bytes(self) -> Rate:
        """This rate rounded down to whole bytes a second, as the kernel would report it."""
        return Rate.from_bytes_per_second(self.bytes_per_second)

    def __str__(self) -> str:
        return _exact(self.bits_per_second, "bit")


def parse_rate(text: str) -> Rate:
    """The rate that a text like `200mbit`, `1.5Gbit` or `10gbit/s` means.

    Raises RateError without a unit, for units of bytes (tc reads `mbps` as megabytes, people as
    megabits), for zero and beyond 10tbit.
    """
    quantity = _QUANTITY.fullmatch(text.strip().lower())
    if quantity is None:
        raise RateError(f"{text!r} is not a rate: write a number and a unit, like 200mbit")
    unit = quantity["unit"].removesuffix("/s")
    if not unit:
        raise RateError(f"{text!r} has no unit: write {text.strip()}mbit or {text.strip()}gbit")
    if unit not in _RATE_UNITS:
        raise RateError(
            f"{text!r} has the unit {quantity['unit']!r}, which is not one of bits a second: "
            "write kbit, mbit or gbit"
        )
    return Rate(int(Fraction(quantity["number"]) * _RATE_UNITS[unit]))


def parse_size(text: str) -> int:
    """The bytes that a text like `256KB` (256,000), `256KiB` (262,144) or `1500B` means.

    Raises SizeError without a unit, for bits, for zero and for a part of a byte.
    """
    quantity = _QUANTITY.fullmatch(text.strip().lower())
    if quantity is None:
        raise SizeError(f"{text!r} is not a size: write a number and a unit, like 256KB")
    unit = quantity["unit"]
    if not unit:
        raise SizeError(f"{text!r} has no unit: write {text.strip()}KB or {text.strip()}MB")
    if unit not in _SIZE_UNITS:
        raise SizeError(
            f"{text!r} has the unit {unit!r}, which is not one of bytes: write B, KB, KiB or MB"
        )
    size = Fraction(quantity["number"]) * _SIZE_UNITS[unit]
    if size < 1 or size.denominator != 1:
        raise SizeError(f"{text!r} is not a whole number of bytes above zero")
    return int(size)


def size_text(size: int) -> str:
    """The exact text that `parse_size` reads back, the shorter of `256KB` and `250KiB`."""
    decimal = _exact(size, "B")
    binary = [
        f"{size // factor}{prefix.capitalize()}B"
        for prefix, factor in _BINARY.items()
        if size % factor == 0
    ]
    return min([decimal[:-2] + decimal[-2:].upper(), *binary], key=len)


def _exact(value: int, unit: str) -> str:
    """`value` in the largest decimal unit that is not above it, every digit kept."""
    prefix, factor = next(
        (entry for entry in reversed(_DECIMAL.items()) if value >= entry[1]), ("", 1)
    )
    whole, rest = divmod(value, factor)
    digits = f"{rest:0{len(str(factor)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}{'.' if digits else ''}{digits}{prefix}{unit}"
