"""Every use of a planned module, over every model and strategy: equal to eager, or refused."""
