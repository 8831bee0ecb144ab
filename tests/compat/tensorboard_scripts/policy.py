"""A small PPO on a walk to the right, in the way of public scripts: its numbers go through a SummaryWriter.

python policy.py sync         with `wandb.init(sync_tensorboard=True)`, the writer's class imported before
python policy.py sync-late    the same, the class imported afterwards
python policy.py sync-x       the same with tensorboardX
python policy.py writer       the writer alone, of logclient.compat.tensorboard
"""

# mypy: ignore-errors
import sys
import time

import torch
from torch import nn
from torch.distributions import Categorical

mode = sys.argv[1]
name = f"walk__{mode}__1"
settings = {"lr": 3e-3, "steps": 64, "updates": 6, "epochs": 2, "clip": 0.2}

if mode == "sync":
    from torch.utils.tensorboard import SummaryWriter
if mode == "writer":
    from logclient.compat.tensorboard import SummaryWriter
else:
    import logclient.compat.wandb as wandb

    wandb.init(
        project="walk", name=name, config=settings, sync_tensorboard=True, monitor_gym=True, save_code=True
    )
if mode == "sync-late":
    from torch.utils.tensorboard import SummaryWriter
if mode == "sync-x":
    from tensorboardX import SummaryWriter

writer = SummaryWriter(f"runs/{name}")
writer.add_text(
    "hyperparameters", "|param|value|\n|-|-|\n" + "\n".join(f"|{k}|{v}|" for k, v in settings.items())
)

torch.manual_seed(1)
actor = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=settings["lr"])
global_step, position, total, start = 0, 0.0, 0.0, time.time()
for update in range(1, settings["updates"] + 1):
    optimizer.param_groups[0]["lr"] = settings["lr"] * (1 - (update - 1) / settings["updates"])
    states, actions, logs, rewards = [], [], [], []
    for _ in range(settings["steps"]):
        global_step += 1
        state = torch.tensor([position])
        with torch.no_grad():
            chosen = Categorical(logits=actor(state))
            action = chosen.sample()
        position += 0.2 if action else -0.1
        reward = 1.0 if position >= 1 else -0.01
        total += reward
        states.append(state)
        actions.append(action)
        logs.append(chosen.log_prob(action))
        rewards.append(reward)
        if abs(position) >= 1:
            writer.add_scalar("charts/episodic_return", total, global_step)
            position, total = 0.0, 0.0
    returns, back = [], 0.0
    for reward in reversed(rewards):
        back = reward + 0.95 * back
        returns.insert(0, back)
    states, actions, logs = torch.stack(states), torch.stack(actions), torch.stack(logs)
    returns = torch.tensor(returns)
    for _ in range(settings["epochs"]):
        values = critic(states).squeeze(1)
        advantage = returns - values.detach()
        new = Categorical(logits=actor(states))
        ratio = (new.log_prob(actions) - logs).exp()
        clipped = ratio.clamp(1 - settings["clip"], 1 + settings["clip"])
        policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
        value_loss = (returns - values).square().mean()
        optimizer.zero_grad()
        (policy_loss + 0.5 * value_loss - 0.01 * new.entropy().mean()).backward()
        optimizer.step()
    writer.add_scalar("charts/learning_rate", optimizer.param_groups[0]["lr"], global_step)
    writer.add_scalar("losses/value_loss", value_loss.item(), global_step)
    writer.add_scalar("losses/policy_loss", policy_loss, global_step)
    writer.add_scalar("losses/entropy", new.entropy().mean().item(), global_step)
    writer.add_scalar("charts/SPS", int(global_step / (time.time() - start)), global_step)
writer.close()
