"""Writers whose driver runs in a cluster: the agent that submits and follows a driver, and the driver's reports."""
