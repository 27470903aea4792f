"""The runtime of a generated package: these files are copied into it, word for word."""
