"""The version, apart so that the build backend reads it without importing the package."""

__version__ = "0.1.0"
