"""The ratios of `steps.py` on a GPU, in float32 and bfloat16, in about five minutes: `python benchmarks/gpu.py`."""

import torch
from steps import main

if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU here; benchmarks/steps.py measures a CPU")
    print(torch.cuda.get_device_name())
    for precision in ("float32", "bfloat16"):
        for batch in (32, 512):
            main(["--device", "cuda", "--precision", precision, "--batch", str(batch), "--rounds", "30"])
        main(["--device", "cuda", "--precision", precision, "--batch", "128", "--rounds", "10", "--curves"])
