"""Callbacks: the light base of callbacks, and those that a trainer begins with."""
