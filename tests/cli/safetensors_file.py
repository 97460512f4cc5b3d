"""Reads and writes safetensors in plain Python: tensors as lists of floats."""
import json
import struct


def to_float(bits, dtype):
    if dtype == "BF16":
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    return struct.unpack("<e", struct.pack("<H", bits))[0]


def read(path):
    """{name: (dtype, shape, values)}"""
    content = path.read_bytes()
    size, = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + size])
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        data = content[8 + size + begin:8 + size + end]
        if entry["dtype"] == "F32":
            values = list(struct.unpack(f"<{len(data) // 4}f", data))
        else:
            values = [to_float(bits, entry["dtype"])
                      for bits in struct.unpack(f"<{len(data) // 2}H", data)]
        out[name] = (entry["dtype"], entry["shape"], values)
    return out


def read_folder(folder):
    """All tensors of a folder, and the names of its weight files."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    out = {}
    for name in names:
        for tensor, value in read(folder / name).items():
            assert tensor not in out, f"{tensor} is in two files"
            out[tensor] = value
    return out, names
