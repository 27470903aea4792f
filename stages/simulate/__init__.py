"""Plays a schedule on paper: time, memory, validity. Every plan passes here before it is used."""
