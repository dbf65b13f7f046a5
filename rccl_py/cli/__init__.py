"""The commands: the only modules that print or read the environment."""
