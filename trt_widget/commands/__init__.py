"""What the command line does: a module for each command that builds or follows."""
