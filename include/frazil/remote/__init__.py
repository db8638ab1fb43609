"""Writers whose driver runs in a cluster: the agent that submits and follows a driver, and what the driver tells it."""
