"""Drivers that run in a cluster: how they are submitted, and how YARN, Kubernetes or Spark's master reports their
status.
"""
