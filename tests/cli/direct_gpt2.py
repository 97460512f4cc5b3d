"""GPT-2 in plain Python, straight from its formulas: the logits of one text, from exported weights."""
import math

import safetensors_file


def product(rows, weights, bias):
    """rows x weights + bias; `weights` as columns."""
    return [[math.fsum(map(float.__mul__, row, column)) + b for column, b in zip(weights, bias)]
            for row in rows]


def normed(rows, gain, bias):
    out = []
    for row in rows:
        mean = math.fsum(row) / len(row)
        scale = 1 / math.sqrt(math.fsum((x - mean) ** 2 for x in row) / len(row) + 1e-5)
        out.append([(x - mean) * scale * g + b for x, g, b in zip(row, gain, bias)])
    return out


def gelu(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def softmax(scores):
    most = max(scores)
    powers = [math.exp(s - most) for s in scores]
    total = math.fsum(powers)
    return [p / total for p in powers]


class Gpt2:
    def __init__(self, folder, config):
        tensors, _ = safetensors_file.read_folder(folder)
        self.config = config
        self.tensors = {name.removeprefix("transformer."): value for name, value in tensors.items()}

    def vector(self, name):
        return self.tensors[name][2]

    def rows(self, name):
        _, (count, width), values = self.tensors[name]
        return [values[i * width:(i + 1) * width] for i in range(count)]

    def linear(self, name, rows):
        columns = list(map(list, zip(*self.rows(name + ".weight"))))  # stored as [in, out]
        return product(rows, columns, self.vector(name + ".bias"))

    def norm(self, name, rows):
        return normed(rows, self.vector(name + ".weight"), self.vector(name + ".bias"))

    def attention(self, name, rows):
        heads, width = self.config["n_head"], self.config["n_embd"]
        size = width // heads
        mixed = self.linear(name + ".c_attn", rows)
        out = [[] for _ in rows]
        for head in range(heads):
            begin = head * size
            q, k, v = ([row[part * width + begin:part * width + begin + size] for row in mixed]
                       for part in range(3))
            for t, query in enumerate(q):
                scores = [math.fsum(map(float.__mul__, query, key)) / math.sqrt(size)
                          for key in k[:t + 1]]
                shares = softmax(scores)
                out[t] += [math.fsum(p * v[s][i] for s, p in enumerate(shares))
                           for i in range(size)]
        return self.linear(name + ".c_proj", out)

    def logits(self, ids):
        tokens, places = self.rows("wte.weight"), self.rows("wpe.weight")
        x = [[a + b for a, b in zip(tokens[id], places[t])] for t, id in enumerate(ids)]
        for layer in range(self.config["n_layer"]):
            name = f"h.{layer}"
            added = self.attention(name + ".attn", self.norm(name + ".ln_1", x))
            x = [list(map(float.__add__, a, b)) for a, b in zip(x, added)]
            inner = self.linear(name + ".mlp.c_fc", self.norm(name + ".ln_2", x))
            added = self.linear(name + ".mlp.c_proj", [list(map(gelu, row)) for row in inner])
            x = [list(map(float.__add__, a, b)) for a, b in zip(x, added)]
        return product(self.norm("ln_f", x), tokens, [0.0] * len(tokens))

    def loss(self, ids, first):
        """Sum of the losses of predicting ids[first:], each from what stands before it."""
        rows = self.logits(ids[:-1])
        return -math.fsum(math.log(softmax(rows[t - 1])[ids[t]]) for t in range(first, len(ids)))

    def likeliest(self, ids, first):
        """Whether each of ids[first:] is the likeliest after what stands before it."""
        rows = self.logits(ids[:-1])
        return all(max(rows[t - 1]) == rows[t - 1][ids[t]] for t in range(first, len(ids)))
