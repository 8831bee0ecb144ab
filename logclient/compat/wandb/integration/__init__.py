"""`wandb.integration`: callbacks of W&B's for frameworks, each logging to `wandb.run`. Import the one that you need.

Each module imports its framework; where that is not installed its names are stand-ins. Modules that are not here are
stand-ins as a whole (`logclient.compat.wandb.missing_modules`).
"""
