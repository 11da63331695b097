"""The names that transformers gives to the weights of vision transformers, as timm's."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

_ANCHOR = re.compile(r"^(.*?)embeddings\.patch_embeddings?\.(projection\.)?weight$")
_NAMES: tuple[tuple[str, str], ...] = (
    (r"embeddings\.(cls_token|class_embedding)$", "cls_token"),
    (r"embeddings\.position_embeddings?(\.weight)?$", "pos_embed"),
    (r"embeddings\.patch_embeddings?\.(projection\.)?", "patch_embed.proj."),
    (r"pre_layrnorm\.", "norm_pre."),
    (r"(post_layernorm|layernorm)\.", "norm."),
    (r"encoder\.layers?\.(\d+)\.", r"blocks.\1."),
    (r"(blocks\.\d+)\.(layernorm_before|layer_norm1)\.", r"\1.norm1."),
    (r"(blocks\.\d+)\.(layernorm_after|layer_norm2)\.", r"\1.norm2."),
    (r"(blocks\.\d+)\.attention\.attention\.(query|key|value)\.", r"\1.attn.\2."),
    (r"(blocks\.\d+)\.self_attn\.([qkv])_proj\.", r"\1.attn.\2."),
    (r"(blocks\.\d+)\.(attention\.output\.dense|self_attn\.out_proj)\.", r"\1.attn.proj."),
    (r"(blocks\.\d+)\.intermediate\.dense\.", r"\1.mlp.fc1."),
    (r"(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
    (r"(blocks\.\d+)\.layer_scale(\d)\.lambda1$", r"\1.ls\2.gamma"),
    (r"head\.probe$", "attn_pool.latent"),
    (r"head\.attention\.in_proj_", "attn_pool.in."),
    (r"head\.attention\.out_proj\.", "attn_pool.proj."),
    (r"head\.layernorm\.", "attn_pool.norm."),
    (r"head\.mlp\.", "attn_pool.mlp."),
)
_PARTS = re.compile(r"^(blocks\.\d+\.attn)\.(q|k|v|query|key|value)\.(weight|bias)$")


def from_transformers(weights: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Return the weights under timm's names, None where they are of no vision transformer that is known here.

    Known are ViT, DINOv2, CLIP and SigLIP. What has no name of timm's keeps its own.

    Example:
        >>> sorted(from_transformers({"vit.embeddings.patch_embeddings.projection.weight": torch.zeros(4, 3, 2, 2)}))
        ['patch_embed.proj.weight']
    """
    if (anchor := next(filter(None, map(_ANCHOR.match, weights)), None)) is None:
        return None
    found: dict[str, Tensor] = {}
    attention: dict[str, dict[str, Tensor]] = {}
    for name, value in weights.items():
        own = name.removeprefix(anchor[1])
        for pattern, timms in _NAMES:
            own = re.sub(rf"^{pattern}", timms, own)
        if (part := _PARTS.match(own)) is not None:
            attention.setdefault(f"{part[1]}.qkv.{part[3]}", {})[part[2][0]] = value
        elif own.startswith("attn_pool.in."):
            kind, width = own.removeprefix("attn_pool.in."), len(value) // 3
            found |= {f"attn_pool.q.{kind}": value[:width], f"attn_pool.kv.{kind}": value[width:]}
        elif own == "cls_token":
            found[own] = value.reshape(1, 1, -1)
        else:
            found[own] = value[None] if own == "pos_embed" and value.ndim == 2 else value
    for name, parts in attention.items():
        if parts.keys() == {"q", "k", "v"}:
            found[name] = torch.cat([parts[key] for key in "qkv"])
    return found
