"""What runs beside a training process: the agent, the durable log and the command line."""
