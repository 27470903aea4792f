"""A function that reads settings, for another file's function."""

from __future__ import annotations


class Settings:
    def __init__(self) -> None:
        self.level = 1.0


SETTINGS = Settings()


def scaled() -> float:
    return SETTINGS.level * 2
