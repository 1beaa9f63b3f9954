"""Numbers and costs as text for readers, the same in tables of the terminal, of LaTeX and of pages (parts.js)."""

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many digits.

    >>> number(0.98765), number(12345.6), number(0.00015), number(1e-6), number(None)
    ('0.988', '12,346', '1.5·10⁻⁴', '10⁻⁶', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e6 or size < 1e-3:
        rounded = _rounded(value, digits)
        exponent = rounded.adjusted()
        front = f"{rounded.scaleb(-exponent).normalize():f}"
        power = f"10{str(exponent).translate(SUPERSCRIPT)}"
        return power if front == "1" else f"{front}·{power}"
    if size >= 1000:
        return f"{_rounded(value, max(digits, len(str(int(size))))):,f}"
    return f"{_rounded(value, digits):f}"


def amount(value: float | None, measure: str) -> str:
    """A cost as text: bytes and seconds with their unit, others with separators of thousands.

    >>> amount(43400, "bytes_up"), amount(1234.56, "rounds"), amount(250000, "gradients"), amount(90.4, "seconds")
    ('43.4 kB', '1,234.6', '250 k', '90.4 s')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if measure in ("bytes", "bytes_up"):
        return _scaled(value, ("B", "kB", "MB", "GB", "TB"))
    if measure == "seconds":
        if value >= 120:
            return f"{number(value / 3600)} h" if value >= 7200 else f"{number(value / 60)} min"
        return f"{number(value * 1000)} ms" if 0 < value < 1 else f"{number(value)} s"
    if value >= 1e5:
        return _scaled(value, ("", "k", "M", "G"))
    return f"{Decimal(repr(value)).quantize(Decimal('0.1'), ROUND_HALF_UP).normalize():,f}"


def _scaled(value: float, units: Sequence[str]) -> str:
    unit = 0
    while abs(value) >= 1000 and unit < len(units) - 1:
        value, unit = value / 1000, unit + 1
    text = f"{_rounded(value, max(3, len(str(int(abs(value))))) if abs(value) >= 100 else 3):f}" if value else "0"
    return f"{text} {units[unit]}".rstrip()


def _rounded(value: float, digits: int) -> Decimal:
    """The value with so many digits, without zeros at its end; a half is rounded away from zero, as in JavaScript."""
    exact = Decimal(value)
    return exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), ROUND_HALF_UP).normalize()
