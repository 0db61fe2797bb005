"""Tidegate's controller: the pure core of rate control and the thin shell that works prompts through it."""

DISTRIBUTION = "tidegate"  # whose this package is: the name is a generic one
