"""Settings that a forward reads in several ways."""
