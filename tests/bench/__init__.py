"""Benches: what the widget costs. ``python -m tests.bench`` prints the table."""
