"""The programs beside a training process: the agent, the durable log, the command line and the collector."""
