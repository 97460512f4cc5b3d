"""A torch.nn.Module under ZeRO: torchrun --nproc-per-node 2 torch_module.py [STAGE [STEPS]]

PyTorch computes losses and gradients on the CPU; the engine shards, reduces, clips and updates. The same
program runs alone: python torch_module.py
"""

import sys

import torch

import ds


def main() -> None:
    stage = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 1)
    )
    config = {
        "train_batch_size": 32,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 1.0,
    }
    x = torch.randn(512, 16)
    data = torch.utils.data.TensorDataset(x, x.square().mean(1, keepdim=True))
    engine, _, loader, _ = ds.initialize(model=module, config=config, training_data=data)
    while engine.global_steps < steps:
        for inputs, wanted in loader:
            loss = torch.nn.functional.mse_loss(engine(inputs), wanted)
            engine.backward(loss)
            engine.step()
    report = engine.last_report
    if engine.global_rank == 0:
        print(f"{engine.world_size} ranks, stage {stage}: step {report.step}  loss {report.loss:.5f}")


if __name__ == "__main__":
    main()
