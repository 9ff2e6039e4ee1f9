"""A transformer decoder in torch.nn (Radford et al. 2019: normalisation first, GELU, learned positions).

Every operation in it has a deterministic kernel on CUDA where attention is computed by matrix products, which
torch.nn.attention.sdpa_kernel(SDPBackend.MATH) sees to.
"""

import torch
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    """Attention to what came before, then two linear maps."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        batch, length, width = x.shape
        parts = self.project(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.join(out.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.before(x))
        return x + self.narrow(functional.gelu(self.widen(self.between(x))))


class GPT(nn.Module):
    """Tokens to the scores of the next ones."""

    def __init__(self, layers=12, width=768, heads=12, vocabulary=16384, longest=1024):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.scores = nn.Linear(width, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.scores(self.last(x))
