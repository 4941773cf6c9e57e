"""Where a build's stream goes besides a notebook: a terminal, plain lines, a file or a pipe."""
