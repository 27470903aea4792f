"""Suites of the field, planned and compared with eager: operators, layers and architectures."""
