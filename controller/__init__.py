"""Tidegate's controller: the pure core of rate control and the thin shell that works prompts through it."""
