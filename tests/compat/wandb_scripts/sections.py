"""Several runs in one program, steps given, rows in several calls, and no `finish` for the last."""

import logclient.compat.wandb as wandb

for seed in range(2):
    with wandb.init(project="sections", name=f"seed-{seed}", config={"seed": seed}, reinit=True) as run:
        for step in range(0, 30, 10):
            run.log({"loss": 1 / (step + 1)}, step=step)
            run.log({"accuracy": step / 30}, step=step)
        run.summary.update({"note": "done"})

run = wandb.init(project="sections", name="open", settings=wandb.Settings(start_method="fork"))
assert run is wandb.run is wandb.init(project="other")
table = wandb.Table(columns=["step", "guess"])
for step in range(3):
    table.add_data(step, "yes")
    wandb.log({"a": step}, commit=False)
    wandb.log({"b": step})
wandb.log({"table": table, "roc": wandb.plot.roc_curve([0, 1], [0.1, 0.9])})
wandb.log({"last": 1.5}, step=50)
