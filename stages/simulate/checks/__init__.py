"""What the referee demands of each action: one file a family of actions."""
