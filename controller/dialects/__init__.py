"""Dialects: how each provider is asked, and what its answers mean."""
