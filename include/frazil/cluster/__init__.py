"""Drivers that run in a cluster: how they are submitted, and what YARN and Kubernetes tell of them."""
