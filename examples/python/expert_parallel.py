"""Experts that ranks share, with PyTorch's autograd: torchrun --nproc-per-node 2 expert_parallel.py [STEPS [BALANCE]]

PyTorch computes the experts and their gradients; ds.experts chooses, sorts, and adds up, and ds.Comm moves rows
between ranks. The same program runs alone, with all experts here: python expert_parallel.py
"""

import sys
from typing import Any, Optional

import torch

import ds


class Gate(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, logits: Any, top_k: int) -> Any:
        gate = ds.experts.gate(logits, top_k=top_k, route_norm=True)
        chosen, weights, counts, losses = (tensor.torch() for tensor in gate)
        ctx.save_for_backward(logits, chosen, counts)
        ctx.top_k = top_k
        ctx.mark_non_differentiable(chosen, counts)
        return weights, losses, chosen, counts

    @staticmethod
    def backward(ctx: Any, dweights: Any, dlosses: Any, *_: Any) -> Any:
        logits, chosen, counts = ctx.saved_tensors
        dx = ds.experts.gate_backward(logits, chosen, counts, dweights.contiguous(), dlosses.contiguous(),
                                      top_k=ctx.top_k, route_norm=True)
        return dx.torch(), None


class Dispatch(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tokens: Any, order: Any, places: Any) -> Any:
        ctx.save_for_backward(places)
        return ds.experts.dispatch(tokens, order, places.shape[1]).torch()

    @staticmethod
    def backward(ctx: Any, drows: Any) -> Any:
        return ds.experts.combine(drows.contiguous(), *ctx.saved_tensors).torch(), None, None


class Combine(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, rows: Any, weights: Any, order: Any, places: Any) -> Any:
        ctx.save_for_backward(rows, weights, order, places)
        return ds.experts.combine(rows, places, weights).torch()

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        rows, weights, order, places = ctx.saved_tensors
        dy = dy.contiguous()
        drows = ds.experts.dispatch(dy, order, places.shape[1], weights).torch()
        return drows, ds.experts.weights_backward(rows, places, dy).torch(), None, None


class Exchange(torch.autograd.Function):  # type: ignore[misc]
    """Rows to the ranks that have their experts; `sent` and `received` count rows by rank."""

    @staticmethod
    def forward(ctx: Any, rows: Any, comm: ds.Comm, sent: list[int], received: list[int]) -> Any:
        ctx.way_back = comm, received, sent
        width = rows.shape[1]
        out = rows.new_empty(sum(received), width)
        comm.start("all_to_all", out, rows.contiguous(), input_counts=[n * width for n in sent],
                   output_counts=[n * width for n in received], label="experts").wait()
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return Exchange.apply(gradient, *ctx.way_back), None, None, None


class ExpertParallel(torch.nn.Module):  # type: ignore[misc]
    """`experts` feed-forward networks, of which a token goes through `top_k`; each rank has its part of them."""

    def __init__(self, width: int, inner: int, experts: int, top_k: int, comm: Optional[ds.Comm]) -> None:
        super().__init__()
        self.comm, self.top_k, self.all = comm, top_k, experts
        self.router = torch.nn.Linear(width, experts, bias=False)
        every = [torch.nn.Sequential(torch.nn.Linear(width, inner), torch.nn.GELU(),
                                     torch.nn.Linear(inner, width)) for _ in range(experts)]
        rank, size = (comm.rank, comm.size) if comm else (0, 1)
        here = experts // size
        self.experts = torch.nn.ModuleList(every[rank * here : (rank + 1) * here])

    def forward(self, x: Any) -> Any:
        weights, losses, chosen, _ = Gate.apply(self.router(x), self.top_k)
        offsets, order, places = (tensor.torch() for tensor in ds.experts.sort(chosen, self.all))
        rows = Dispatch.apply(x, order, places)
        sent = offsets.diff().long()  # rows of each expert, as they go out
        received = sent.clone()
        if self.comm:
            self.comm.all_to_all(received, sent)
        ranks, here = self.all // len(self.experts), len(self.experts)
        ways = [counts.view(ranks, here).sum(1).tolist() for counts in (sent, received)]
        if self.comm:
            rows = Exchange.apply(rows, self.comm, *ways)
        # What arrived lies by rank; experts want it by expert.
        expert = torch.arange(here, dtype=torch.int32).repeat(ranks).repeat_interleave(received)
        begins, by_expert, back = (t.torch() for t in ds.experts.sort(expert.view(-1, 1), here))
        parts = Dispatch.apply(rows, by_expert, back).split(begins.diff().tolist())
        rows = torch.cat([expert(part) for expert, part in zip(self.experts, parts)])
        rows = Combine.apply(rows, torch.ones(back.shape), by_expert, back)
        if self.comm:
            rows = Exchange.apply(rows, self.comm, *reversed(ways))
        return Combine.apply(rows, weights, order, places), losses[0]


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    coefficient = float(sys.argv[2]) if len(sys.argv) > 2 else 0.01  # of the balancing loss
    comm = ds.init_distributed()
    rank, ranks = (comm.rank, comm.size) if comm else (0, 1)
    torch.manual_seed(0)
    block = ExpertParallel(width=16, inner=32, experts=8, top_k=2, comm=comm)
    optimizer = torch.optim.AdamW(block.parameters(), lr=0.01)
    x = torch.randn(512, 16)
    wanted = torch.where(x[:, :1] > 0, x.cumsum(1), x.flip(1))  # two kinds of token
    share = slice(rank * 512 // ranks, (rank + 1) * 512 // ranks)
    for step in range(steps):
        y, balance = block(x[share])
        loss = torch.nn.functional.mse_loss(y, wanted[share]) + coefficient * balance
        (loss / ranks).backward()  # the mean over ranks; an expert's tokens come from all of them
        told = loss.detach().clone() / ranks
        if comm:
            comm.all_reduce(block.router.weight.grad)
            comm.all_reduce(told)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 10 == 9:
            print(f"{ranks} ranks: step {step + 1}  loss {told.item():.5f}")


if __name__ == "__main__":
    main()
