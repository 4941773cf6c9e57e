"""Surfaces for other programs: HTTP, editors (LSP), agents (MCP). Each is an extra."""
