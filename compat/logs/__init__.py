"""Logs: `self.log`, what becomes of its values, and the loggers that get them."""
