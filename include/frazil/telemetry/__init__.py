"""A writer's numbers for Prometheus and OpenTelemetry. Off unless declared; no batch waits for it."""
