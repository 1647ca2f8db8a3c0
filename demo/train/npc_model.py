"""The model of characters, of Llama's architecture, as PyTorch computes it. Weights of all layers lie in one tensor.

SPDX-License-Identifier: Apache-2.0
"""
import torch
import torch.nn.functional as F

import npc_data

HEAD_DIM, EPSILON = 64, 1e-5
PRESETS = {  # layers, channels, hidden ones, heads, heads of keys
    "full": dict(layers=8, dim=256, hidden=768, heads=4, kv_heads=2),
    "tiny": dict(layers=1, dim=64, hidden=64, heads=1, kv_heads=1),
    "small": dict(layers=4, dim=128, hidden=384, heads=2, kv_heads=1),
}


def sizes_of(preset, words):
    return {**PRESETS[preset], "head_dim": HEAD_DIM, "words": words, "context": npc_data.CONTEXT, "epsilon": EPSILON, "rope_base": 10000.0}


def norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * weight


def turned(x, cos, sin):
    """Pairs of neighbours by their position's angle. x: [batch, tokens, heads, channels]."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype).transpose(1, 2)


def block(x, cos, sin, attention_norm, hidden_norm, q, k, v, o, gate, up, down):
    """A layer. x: float32 [batch, tokens, channels]."""
    h = norm(x, attention_norm).to(q.dtype)
    queries, keys, values = (F.linear(h, w).unflatten(-1, (-1, HEAD_DIM)) for w in (q, k, v))
    group = queries.shape[-2] // keys.shape[-2]
    queries, keys = turned(queries, cos, sin), turned(keys, cos, sin)
    keys, values = (t.repeat_interleave(group, 1) for t in (keys, values.transpose(1, 2)))
    out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    x = x + F.linear(out.transpose(1, 2).flatten(-2), o).float()
    h = norm(x, hidden_norm).to(q.dtype)
    return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down).float()


def losses_of(logits, targets):
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")


class Model(torch.nn.Module):
    def __init__(self, sizes):
        super().__init__()
        s = self.sizes = sizes
        self.kind = torch.float32  # of products
        layers, dim, hidden = s["layers"], s["dim"], s["hidden"]
        queries, keys = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]

        def matrix(rows, columns, zero=False):
            scale = 0.0 if zero else columns ** -0.5
            return torch.nn.Parameter(scale * torch.randn(layers, rows, columns))
        self.embedding = torch.nn.Parameter(0.02 * torch.randn(s["words"], dim))
        self.q, self.k, self.v = matrix(queries, dim), matrix(keys, dim), matrix(keys, dim)
        self.o = matrix(dim, queries, zero=True)
        self.gate, self.up, self.down = matrix(hidden, dim), matrix(hidden, dim), matrix(dim, hidden, zero=True)
        self.attention_norm = torch.nn.Parameter(torch.ones(layers, dim))
        self.hidden_norm = torch.nn.Parameter(torch.ones(layers, dim))
        self.last_norm = torch.nn.Parameter(torch.ones(dim))
        angles = torch.outer(torch.arange(s["context"]).float(), s["rope_base"] ** (-torch.arange(0, s["head_dim"], 2) / s["head_dim"]))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids, block=block):
        x = F.embedding(ids, self.embedding)
        turn = self.cos[:ids.shape[1], None], self.sin[:ids.shape[1], None]
        matrices = (w.to(self.kind).unbind(0) for w in (self.q, self.k, self.v, self.o, self.gate, self.up, self.down))
        for weights in zip(self.attention_norm.unbind(0), self.hidden_norm.unbind(0), *matrices):
            x = block(x, *turn, *weights)
        return norm(x, self.last_norm).to(self.kind)

    def logits(self, x):
        return F.linear(x, self.embedding.to(self.kind))

    def tensors(self):
        """As GGUF names them."""
        out = {"token_embd.weight": self.embedding, "output_norm.weight": self.last_norm}
        for i in range(self.sizes["layers"]):
            for name, weights in {"attn_norm": self.attention_norm, "attn_q": self.q, "attn_k": self.k, "attn_v": self.v, "attn_output": self.o,
                                  "ffn_norm": self.hidden_norm, "ffn_gate": self.gate, "ffn_up": self.up, "ffn_down": self.down}.items():
                out[f"blk.{i}.{name}.weight"] = weights[i]
        return {name: weights.detach().float().cpu().numpy() for name, weights in out.items()}


def loss_of(model, rows, block=block, losses_of=losses_of):
    """Of what characters say, and a little of everything else; and of the former alone. rows: tokens with their marks."""
    ids = rows & (npc_data.REPLY - 1)
    losses = losses_of(model.logits(model(ids[:, :-1], block)), ids[:, 1:])
    said = (rows[:, 1:] >= npc_data.REPLY).flatten().float()
    weights = said + 0.1 * (1 - said) * (ids[:, 1:] > 0).flatten().float()
    return (losses * weights).sum() / weights.sum(), (losses.detach() * said).sum() / said.sum()


@torch.no_grad()
def greedy(model, prompts, tokens, most=72, batch=256, device="cpu"):
    """The likeliest replies, token by token up to the end."""
    out = []
    for start in range(0, len(prompts), batch):
        part = prompts[start:start + batch]
        ids = torch.zeros(len(part), npc_data.CONTEXT, dtype=torch.long, device=device)
        for i, prompt in enumerate(part):
            ids[i, :len(prompt)] = torch.tensor(prompt, device=device)
        at = torch.tensor([len(prompt) for prompt in part], device=device)
        each, over = torch.arange(len(part), device=device), torch.zeros(len(part), dtype=torch.bool, device=device)
        begin = at.clone()
        longest = int(at.max())
        for step in range(most):
            x = model(ids[:, :min(longest + step, npc_data.CONTEXT)])
            token = model.logits(x[each, at - 1]).argmax(-1)
            over |= (token == tokens.stop) | (at >= npc_data.CONTEXT - 1)
            if over.all():
                break
            ids[each[~over], at[~over]] = token[~over]
            at = torch.where(over, at, at + 1)
        for i in range(len(part)):
            out.append(ids[i, int(begin[i]):int(at[i])].tolist())
    return out


class Muon:
    """Momentum, made orthogonal, for matrices of layers; Adam for the rest (Jordan et al. 2024)."""

    def __init__(self, model, rate=0.02, rate_of_rest=3e-3):
        self.matrices = [w for w in model.parameters() if w.dim() == 3]
        self.momenta = [torch.zeros_like(w) for w in self.matrices]
        self.rate, self.rate_of_rest = rate, rate_of_rest
        rest = [w for w in model.parameters() if w.dim() != 3]
        self.rest = torch.optim.AdamW(rest, lr=rate_of_rest, betas=(0.9, 0.95), weight_decay=0.0)

    @staticmethod
    def orthogonal(x):
        kind = x.dtype
        x = x.bfloat16() if x.is_cuda else x
        tall = x.shape[-2] > x.shape[-1]
        x = x.mT if tall else x
        x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
        for _ in range(5):
            a = x @ x.mT
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return (x.mT if tall else x).to(kind)

    @torch.no_grad()
    def step(self, share):
        """share: of the rate."""
        for w, momentum in zip(self.matrices, self.momenta):
            momentum.lerp_(w.grad, 0.05)
            update = self.orthogonal(w.grad.lerp(momentum, 0.95))
            w.mul_(1 - 0.01 * share * self.rate)
            w.sub_(update, alpha=share * self.rate * max(1, w.shape[-2] / w.shape[-1]) ** 0.5)
            w.grad = None
        for group in self.rest.param_groups:
            group["lr"] = share * self.rate_of_rest
        self.rest.step()
        self.rest.zero_grad()

    def state(self):
        rest = [self.rest.state[w] for group in self.rest.param_groups for w in group["params"]]
        return {"momenta": [m.bfloat16() for m in self.momenta],
                "rest": [{name: value.bfloat16() if value.dim() else value for name, value in state.items()} for state in rest]}

    def load(self, state):
        for momentum, saved in zip(self.momenta, state["momenta"]):
            momentum.copy_(saved)
        each = [w for group in self.rest.param_groups for w in group["params"]]
        for w, saved in zip(each, state["rest"]):
            self.rest.state[w] = {name: value.to(w.device, torch.float32) if value.dim() else value for name, value in saved.items()}
