"""GPT-2 as an ONNX graph in the form that ONNX Runtime serves fastest on a CPU, and the same model in
NumPy to check the graph. Needs onnx and numpy.

One graph serves prompts and single tokens: com.microsoft's GroupQueryAttention writes keys and values
into buffers of the whole context that are input and output at once; biases and residuals lie in
SkipLayerNormalization and FastGelu; after the attention of the last layer only the last position goes on.
Products of `Form`:
  float    MatMul in fp32
  dynamic  DynamicQuantizeMatMul: weights in int8 with a scale for each output, activations in 8 bits
           with a scale for the whole tensor
  nbits    MatMulNBits: weights of 4 or 8 bits with a scale for `block` of them; `accuracy` 4 rounds
           activations to 8 bits in blocks, too, 1 leaves them in fp32
"""
import dataclasses

import numpy as np

EPSILON = 1e-5


@dataclasses.dataclass(frozen=True)
class Form:
    product: str
    bits: int = 32
    accuracy: int = 4
    block: int = 32


def random_weights(shape, seed, spread=0.02):
    """Matrices as (inputs, outputs)."""
    width, random = shape["n_embd"], np.random.default_rng(seed)

    def normal(*size):
        return random.normal(0, spread, size).astype(np.float32)

    out = {"wte": normal(shape["vocab_size"], width), "wpe": normal(shape["n_positions"], width)}
    norms = [f"{layer}.{name}" for layer in range(shape["n_layer"]) for name in ("ln_1", "ln_2")]
    for norm in [*norms, "ln_f"]:
        out[f"{norm}.weight"], out[f"{norm}.bias"] = 1 + normal(width), normal(width)
    for layer in range(shape["n_layer"]):
        for name, rows, columns in (("qkv", width, 3 * width), ("out", width, width),
                                    ("up", width, 4 * width), ("down", 4 * width, width)):
            out[f"{layer}.{name}.weight"] = normal(rows, columns)
            out[f"{layer}.{name}.bias"] = normal(columns)
    return out


def codes_of(matrix, form):
    """Symmetric codes with their middle at 2^(bits - 1), as outputs x blocks x block, and scales as
    outputs x blocks. dynamic: one block, that is one scale for an output."""
    block = matrix.shape[0] if form.product == "dynamic" else form.block
    grouped = np.ascontiguousarray(matrix.T).reshape(matrix.shape[1], -1, block)
    largest = 2 ** (form.bits - 1) - 1
    scales = np.maximum(np.abs(grouped).max(axis=2) / largest, 1e-12).astype(np.float32)
    codes = np.rint(grouped / scales[..., None]).astype(np.int16) + largest + 1
    return codes.astype(np.uint8), scales


def rounded(matrix, form):
    """The numbers that the codes stand for."""
    if form.product == "float":
        return matrix.astype(np.float64)
    codes, scales = codes_of(matrix, form)
    numbers = (codes.astype(np.float64) - 2 ** (form.bits - 1)) * scales[..., None]
    return numbers.reshape(matrix.shape[1], -1).T


class Graph:
    def __init__(self, shape, weights, form, cache_scales=None):
        """cache_scales: for keys and values in 8 bits, (layer, "key" or "value") -> scale."""
        self.shape, self.weights, self.form, self.cache_scales = shape, weights, form, cache_scales
        self.nodes, self.initializers, self.caches = [], {}, []

    def node(self, kind, inputs, outputs, domain="com.microsoft", **attributes):
        from onnx import helper
        self.nodes.append(helper.make_node(kind, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def constant(self, name, array):
        from onnx import numpy_helper
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def weight(self, name):
        return self.constant(name, self.weights[name])

    def product(self, x, name, matrix, bias=""):
        form, out = self.form, f"{name}.product"
        if form.product == "float":
            self.node("MatMul", [x, self.constant(f"{name}.matrix", matrix)], [out], domain="")
            return self.node("Add", [out, bias], [f"{out}.biased"], domain="") if bias else out
        codes, scales = codes_of(matrix, form)
        whole = form.product == "dynamic"
        scale = self.constant(f"{name}.scales", scales.reshape(-1) if whole else scales)
        if whole:
            signed = (codes.astype(np.int16) - 128).astype(np.int8).reshape(matrix.shape[1], -1).T
            return self.node("DynamicQuantizeMatMul",
                             [x, self.constant(f"{name}.codes", signed), scale, "", bias], [out])
        if form.bits == 4:
            codes = codes[..., 0::2] | codes[..., 1::2] << 4
        codes = self.constant(f"{name}.codes", codes)
        return self.node("MatMulNBits", [x, codes, scale, "", "", bias], [out], K=matrix.shape[0],
                         N=matrix.shape[1], bits=form.bits, block_size=form.block,
                         accuracy_level=form.accuracy)

    def norm(self, x, skip, name, bias=""):
        """Of x + skip + bias; returns it and the sum."""
        out = [f"{name}.out", "", "", f"{name}.sum"]
        self.node("SkipLayerNormalization",
                  [x, skip, self.weight(f"{name}.weight"), self.weight(f"{name}.bias"), bias], out,
                  epsilon=EPSILON)
        return out[0], out[3]

    def attention(self, qkv, layer):
        past = [f"past.{layer}.{part}" for part in ("key", "value")]
        present = [f"present.{layer}.{part}" for part in ("key", "value")]
        self.caches += zip(past, present)
        inputs, attributes = [qkv, "", "", *past, "lengths", "total"], {}
        if self.cache_scales:
            inputs += [""] * 5
            for part in ("key", "value"):
                scale = np.float32([self.cache_scales[layer, part]])
                inputs.append(self.constant(f"{layer}.{part}.scale", scale))
            attributes = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR",
                          "kv_cache_bit_width": 8}
        heads = self.shape["n_head"]
        return self.node("GroupQueryAttention", inputs, [f"{layer}.attention", *present],
                         num_heads=heads, kv_num_heads=heads, **attributes)

    def last(self, x):
        end = self.constant("end", np.int64([-1]))
        return self.node("Gather", [x, end], [f"{x}.last"], domain="", axis=1)

    def layers(self):
        tokens = self.node("Gather", [self.weight("wte"), "ids"], ["tokens"], domain="")
        places = self.node("Gather", [self.weight("wpe"), "positions"], ["places"], domain="")
        x, total = self.norm(tokens, places, "0.ln_1")
        layers = self.shape["n_layer"]
        for layer in range(layers):
            def product(x, name, bias=""):
                return self.product(x, f"{layer}.{name}", self.weights[f"{layer}.{name}.weight"], bias)

            x = self.attention(product(x, "qkv", self.weight(f"{layer}.qkv.bias")), layer)
            if layer + 1 == layers:
                x, total = self.last(x), self.last(total)
            x, total = self.norm(product(x, "out"), total, f"{layer}.ln_2",
                                 self.weight(f"{layer}.out.bias"))
            x = self.node("FastGelu", [product(x, "up"), self.weight(f"{layer}.up.bias")],
                          [f"{layer}.gelu"])
            following = f"{layer + 1}.ln_1" if layer + 1 < layers else "ln_f"
            x, total = self.norm(product(x, "down"), total, following,
                                 self.weight(f"{layer}.down.bias"))
        return self.product(x, "logits", self.weights["wte"].T)

    def model(self):
        from onnx import TensorProto, helper
        logits, shape = self.layers(), self.shape
        kind = TensorProto.INT8 if self.cache_scales else TensorProto.FLOAT
        room = [1, shape["n_head"], shape["n_positions"], shape["n_embd"] // shape["n_head"]]
        value = helper.make_tensor_value_info
        inputs = [value("ids", TensorProto.INT64, [1, "length"]),
                  value("positions", TensorProto.INT64, [1, "length"]),
                  value("lengths", TensorProto.INT32, [1]), value("total", TensorProto.INT32, [1])]
        outputs = [value(logits, TensorProto.FLOAT, [1, 1, shape["vocab_size"]])]
        for past, present in self.caches:
            inputs.append(value(past, kind, room))
            outputs.append(value(present, kind, room))
        graph = helper.make_graph(self.nodes, "gpt2", inputs, outputs, list(self.initializers.values()))
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def reference(shape, weights, form, ids):
    """Logits of every position in double precision, of the numbers that the form's codes stand for."""
    def norm(x, name):
        x = x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def product(x, name):
        return x @ rounded(weights[f"{name}.weight"], form) + weights[f"{name}.bias"]

    count, heads = len(ids), shape["n_head"]
    x = weights["wte"].astype(np.float64)[ids] + weights["wpe"][:count]
    for layer in range(shape["n_layer"]):
        parts = product(norm(x, f"{layer}.ln_1"), f"{layer}.qkv").reshape(count, 3, heads, -1)
        query, key, value = parts.transpose(1, 2, 0, 3)
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[2])
        scores = np.exp(np.where(np.tri(count, dtype=bool), scores, -np.inf))
        mixed = scores / scores.sum(axis=2, keepdims=True) @ value
        x = x + product(mixed.transpose(1, 0, 2).reshape(count, -1), f"{layer}.out")
        up = product(norm(x, f"{layer}.ln_2"), f"{layer}.up")
        gelu = up / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        x = x + product(gelu, f"{layer}.down")
    return norm(x, "ln_f") @ rounded(weights["wte"].T, form)
