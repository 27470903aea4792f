"""Programs to start from, each complete."""
