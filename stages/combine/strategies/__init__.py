"""One file a strategy, and the list of them."""
