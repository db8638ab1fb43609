"""Checks whether this machine and its services can run declared streams, and describes how to fix each fault."""
