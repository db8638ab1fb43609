"""Submits drivers to a cluster and reads their status from YARN, Kubernetes or Spark's master."""
