"""Small faults planted on purpose: which of them the tests notice."""
