"""Controls drivers in clusters through the APIs of YARN, Kubernetes and Spark's standalone masters."""
