"""What plans have to keep or make again, decided for the whole step at a few moments."""
