"""The state of a stream, for the command line and for pages."""
