"""A writer's metrics for Prometheus and OpenTelemetry. Off by default; batches never wait for publishing."""
