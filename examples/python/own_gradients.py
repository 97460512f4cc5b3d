"""A model written by hand with NumPy: it computes the gradients, the engine does the rest.

Fits y = tanh(x W1 + b1) W2 + b2 to a curve. Weights and gradients are NumPy arrays of the engine's own
memory: nothing is copied.
"""

import numpy as np

import ds

CONFIG = {
    "train_micro_batch_size_per_gpu": 64,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.02, "weight_decay": 0.0}},
    "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 20, "total_num_steps": 400}},
    "gradient_clipping": 1.0,
}
WIDTH = 32


def main() -> None:
    random = np.random.default_rng(0)
    model = ds.Model.from_parameters(
        {
            "w1": random.normal(0, 1, (1, WIDTH)).astype(np.float32),
            "b1": np.zeros(WIDTH, np.float32),
            "w2": random.normal(0, WIDTH**-0.5, (WIDTH, 1)).astype(np.float32),
            "b2": np.zeros(1, np.float32),
        }
    )
    engine = ds.Engine(model, CONFIG)
    w1, b1, w2, b2 = (model.view(index).numpy() for index in range(4))
    g_w1, g_b1, g_w2, g_b2 = (engine.view_gradient(index).numpy() for index in range(4))
    for step in range(400):
        x = random.uniform(-2, 2, (64, 1)).astype(np.float32)
        y = np.sin(2 * x)
        hidden = np.tanh(x @ w1 + b1)
        error = hidden @ w2 + b2 - y
        engine.set_loss(float((error**2).mean()))
        # The gradient of the mean squared error, backwards through the two layers.
        d_out = 2 * error / len(x)
        d_hidden = (d_out @ w2.T) * (1 - hidden**2)
        g_w2 += hidden.T @ d_out
        g_b2 += d_out.sum(0)
        g_w1 += x.T @ d_hidden
        g_b1 += d_hidden.sum(0)
        report = engine.step()
        if report.step % 100 == 0:
            print(f"step {report.step}  loss {report.loss:.5f}  norm {report.grad_norm:.3f}")


if __name__ == "__main__":
    main()
