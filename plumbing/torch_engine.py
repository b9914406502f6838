"""torch's AdamW in the place of DeepSpeed, for one process: macOS, Windows, a small installation.

The calls that the lessons make of an engine are DeepSpeed's (backward, step, gradient norm), and so
are the weights that come of them.
"""

import os

import torch

from plumbing.settings import UserError


def deepspeed_works():
    """Whether DeepSpeed is there, imports, and knows the GPUs by the names that they have here."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if "GPU-" in visible or "MIG-" in visible:  # it reads numbers alone
        return False
    try:
        import deepspeed  # noqa: F401
    except Exception:  # it looks for CUDA and compilers, and raises what it likes
        return False
    return True


def engine_kind(config):
    """ "deepspeed" or "torch": what `--engine` names; `auto` is DeepSpeed where it works.

    Raises UserError for what the one that is named cannot do.
    """
    named = getattr(config, "engine", "auto")
    works = named != "torch" and deepspeed_works()
    if named == "deepspeed" and not works:
        hint = "pip install deepspeed; CUDA_VISIBLE_DEVICES with numbers; or --engine torch"
        raise UserError(f"--engine deepspeed does not work here: {hint}.")
    if not works and int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError("Several processes need --engine deepspeed: pip install deepspeed.")
    return "deepspeed" if works else "torch"


class TorchEngine:
    """A model and the AdamW of its trained weights; `settings` are those that DeepSpeed gets.

    AdamW's own weights are float32: the model's, or a copy where those are bfloat16 or, with
    --offload, where AdamW is in main memory.
    """

    def __init__(self, model, settings, config):
        self.module = model
        self.device = model.device
        self.max_grad_norm = settings["gradient_clipping"]
        self.trained = [p for p in model.parameters() if p.requires_grad]
        place = "cpu" if config.offload else self.device
        # Of the same memory, where dtype and place are.
        self.masters = [p.detach().to(place, torch.float32) for p in self.trained]
        adamw = {k: v for k, v in settings["optimizer"]["params"].items() if k != "torch_adam"}
        self.optimizer = torch.optim.AdamW(self.masters, **adamw)
        self.basic_optimizer = self.optimizer  # DeepSpeed's, below ZeRO
        self.sums = {}  # weight -> its gradient, summed in float32, where the weight is bfloat16
        self.norm = None

    def __call__(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self.module, name)

    def backward(self, loss):
        """Add to the gradient, any number of times."""
        loss.backward()
        for p in self.trained:
            if p.dtype != torch.float32 and p.grad is not None:
                self.sums[p] = self.sums[p].add_(p.grad) if p in self.sums else p.grad.float()
                p.grad = None

    @torch.no_grad()
    def step(self):
        """Clip the gradient, take a step, forget the gradient; no step if it is not finite."""
        gradients = [self.sums.pop(p, p.grad) for p in self.trained]
        self.norm = torch.nn.utils.get_total_norm([g for g in gradients if g is not None])
        if self.norm.isfinite():
            scale = (self.max_grad_norm / (self.norm + 1e-6)).clamp(max=1.0)
            for master, gradient in zip(self.masters, gradients):
                master.grad = None if gradient is None else gradient.mul_(scale).to(master.device)
            self.optimizer.step()
            for p, master in zip(self.trained, self.masters):
                if p.data_ptr() != master.data_ptr():
                    p.copy_(master)
        self.optimizer.zero_grad()
        for p in self.trained:
            p.grad = None

    def get_global_grad_norm(self):
        """Of the last step, before clipping; not finite where it was not applied."""
        return self.norm
