"""The version, on its own so that files below the package's face can name it."""

__version__ = "0.8.0"
