"""A writer's metrics for Prometheus and OpenTelemetry. Off by default; no batch waits for it."""
