"""A release of PyTorch that was not tested is warned of once."""

from __future__ import annotations

import warnings

import pytest

from tightfit.util.torch_version import warn_of_untested_version


def test_an_untested_release_is_warned_of_once() -> None:
    with pytest.warns(UserWarning, match=r"tested with PyTorch 2.11 to 2.13, and this is 2.14.1"):
        warn_of_untested_version("2.14.1+cu130")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_untested_version("2.14.1+cu130")


@pytest.mark.parametrize("version", ["2.11.0", "2.13.1+cpu", "a build of one's own"])
def test_a_tested_release_is_not_warned_of(version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_untested_version(version)
