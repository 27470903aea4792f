"""Random modules, planned at random and used at random: equal to eager, or refused."""
