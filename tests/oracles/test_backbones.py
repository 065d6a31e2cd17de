"""The image transformer against the published code's numbers (float64, noise zero)."""

import re

import numpy as np
import pytest
import torch

from director.models.transformers import ImageTransformer

# Published parameter names -> ours.
RENAME = [
    (r"^pos_emb$", "embedding.position"),
    (r"^emb\.", "embedding.linear."),
    (r"^enc\.", "blocks."),
    (r"\.la1\.", ".attention_half.norm."),
    (r"\.la2\.", ".mlp_half.norm."),
    (r"\.msa\.", ".attention_half.attention."),
    (r"\.mlp\.", ".mlp_half.mlp."),
    (r"^fc\.0\.", "readout.norm."),
    (r"^fc\.1\.", "readout.linear."),
    (r"\.we$", ".w_e"),
    (r"\.wr$", ".w_r"),
    (r"\.log_lambda_sqrt_inv_diag$", ".log_l"),
    (r"\.m_u$", ".m"),
    (r"\.log_ssqrt$", ".log_s"),
    (r"\.s_sqrt_low_triangle$", ".lower"),
    (r"\.final_weight\.", ".f."),
    (r"\.embed_len_weight\.", ".mix."),
]


def published(shared, name):
    """The published arrays, and our model with their weights in evaluation mode."""
    arrays = np.load(shared / "golden" / f"vit_{name}.npz")
    arrays = {key: torch.from_numpy(arrays[key]) for key in arrays}
    kep = int(name[-1]) or None  # number of kernel-eigenpair layers
    model = ImageTransformer(
        image_size=32,
        channels=3,
        patch=8,
        width=48,
        depth=3,
        heads=4,
        mlp_width=48,
        classes=10,
        attention=kep and {"kind": "kep_svgp", "layers": kep, "variant": "concat", "rank": 5, "multiplier": 2},
    ).double()
    weights = {}
    for key, value in arrays.items():
        if key.startswith("param."):
            key = key[6:]
            for pattern, ours in RENAME:
                key = re.sub(pattern, ours, key)
            weights[key] = value.reshape(model.get_parameter(key).shape)
    model.load_state_dict(weights)
    return arrays, model.eval()


@pytest.mark.parametrize("name", ["softmax_0", "kep_svgp_1", "kep_svgp_3"])
def test_states_and_logits(shared, name):
    arrays, model = published(shared, name)
    x, mask = model.embedding(arrays["image"])
    for layer, block in enumerate(model.blocks, start=1):
        x, _ = block.attention_half(x, mask)
        torch.testing.assert_close(x, arrays[f"after_attention.{layer}"], rtol=1e-10, atol=1e-10)
        x = block.mlp_half(x)
    torch.testing.assert_close(model.readout(x), arrays["logits"], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model(arrays["image"]), arrays["logits"], rtol=1e-10, atol=1e-10)
