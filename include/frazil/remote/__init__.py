"""Writers whose driver runs in a cluster: the local agent that submits and follows it, and the driver's reports."""
