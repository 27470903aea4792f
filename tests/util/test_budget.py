"""Sizes and budgets as people write them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.util.budget import BYTE_UNITS, MAX_BUDGET_BYTES, parse_budget
from tightfit.util.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("8GiB", 8 * 2**30),
        ("145MB", 145_000_000),
        ("144.7 MB", 144_700_000),
        ("1.5KiB", 1536),
        (1_000, 1_000),
        ("1000", 1_000),
        ("12B", 12),
    ],
)
def test_sizes(written: str | int, size: int) -> None:
    assert parse_budget(written).total(fixed=0, keep_all=10**12) == size


def test_a_budget_of_many_digits_is_no_size() -> None:
    with pytest.raises(ConfigError, match=r"budget: 9{60}\.\.\. is no size"):
        parse_budget("9" * 5000)


def test_a_percentage_is_of_what_is_not_fixed() -> None:
    assert parse_budget("50%").total(fixed=100, keep_all=201) == 150
    assert parse_budget("12.5%").share == Fraction(1, 8)
    assert parse_budget("100%").total(fixed=100, keep_all=201) == 201


@pytest.mark.parametrize(
    "written", ["12,368,390 bytes", "12,368,390", "12368390 bytes", "12368390B", "12,368.390kB"]
)
def test_sizes_as_messages_write_them(written: str) -> None:
    budget = parse_budget(written)
    assert (budget.size, "," in budget.directory) == (12_368_390, False)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "1,5GB",
        "1,23,456",
        ",123",
        "12bytesize",
        "MB",
        "8 gigs",
        "0",
        "0MB",
        "-3",
        "1e9",
        "1.5",
        "101%",
        "1.2.3GB",
        "5mb",
        "%",
        "50%%",
        "٣MB",
    ],
)
def test_what_is_no_budget(written: str) -> None:
    with pytest.raises(ConfigError, match=r"^here\.budgets\[2\]: "):
        parse_budget(written, "here.budgets[2]")


@given(st.integers(1, 10**7), st.sampled_from(sorted(BYTE_UNITS)), st.integers(0, 2))
def test_a_size_is_its_number_times_its_unit(number: int, unit: str, spaces: int) -> None:
    written, size = f"{number}{' ' * spaces}{unit}", number * BYTE_UNITS[unit]
    if size < MAX_BUDGET_BYTES:
        assert parse_budget(written).size == size
    else:
        with pytest.raises(ConfigError, match="more than any device has"):
            parse_budget(written)


@given(st.integers(1, 99), st.integers(0, 10**12), st.integers(0, 10**12))
def test_a_greater_share_is_never_less(percent: int, fixed: int, above: int) -> None:
    low = parse_budget(f"{percent}%").total(fixed, fixed + above)
    high = parse_budget(f"{percent + 1}%").total(fixed, fixed + above)
    assert fixed <= low <= high <= fixed + above


@given(st.text(max_size=12))
def test_any_text_is_a_budget_or_a_clear_error(text: str) -> None:
    try:
        budget = parse_budget(text)
    except ConfigError as error:
        assert str(error).startswith("budget: ")
    else:
        assert "/" not in budget.directory
        assert "%" not in budget.directory
        assert budget.total(1, 10) > 0
