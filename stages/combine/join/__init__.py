"""Joins: chains that meet in the loss, the dynamic program that plans them, their simulator."""
