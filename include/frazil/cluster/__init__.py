"""Drivers that run in a cluster: their submission, and their status in YARN and Kubernetes."""
