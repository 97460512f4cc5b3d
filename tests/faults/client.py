"""A rank of a job that calls the library itself: client.py JOB [ARGUMENT]; prints what it saw.

  batches B0,B1,...      all-reduces as many times as its rank's number says, then joins the others
  mismatch shape|order   one rank calls something else
  sums                   all-reduces until something fails; argument: the communication options
"""
import ctypes
import os
import sys

lib = ctypes.CDLL(os.environ["DS_LIBRARY"])
lib.ds_last_error_message.restype = ctypes.c_char_p
lib.ds_comm_destroy.restype = lib.ds_tensor_destroy.restype = None
kFloat32 = 1
kSum = 0


class CommInfo(ctypes.Structure):  # ds_comm_info
    _fields_ = [("struct_size", ctypes.c_int64)] + [
        (name, ctypes.c_int32)
        for name in ("rank", "size", "local_rank", "local_size", "node", "nodes")]


def check(status):
    if status != 0:
        print("error", status, lib.ds_last_error_message().decode(), flush=True)
        sys.exit(1)


def make_comm(options):
    comm = ctypes.c_void_p()
    check(lib.ds_comm_create(-1, -1, options.encode(), None, ctypes.byref(comm)))
    return comm


def rank_in(comm):
    info = CommInfo(struct_size=ctypes.sizeof(CommInfo))
    check(lib.ds_comm_describe(comm, ctypes.byref(info)))
    return info.rank


def make_tensor(values):
    shape, out = (ctypes.c_int64 * 1)(len(values)), ctypes.c_void_p()
    check(lib.ds_tensor_create(kFloat32, shape, 1, ctypes.byref(out)))
    data = (ctypes.c_float * len(values))(*values)
    check(lib.ds_tensor_write(out, data, ctypes.c_int64(ctypes.sizeof(data))))
    return out


def read(tensor, count):
    data = (ctypes.c_float * count)()
    check(lib.ds_tensor_read(tensor, data, ctypes.c_int64(ctypes.sizeof(data))))
    return list(data)


def batches(numbers):
    comm = make_comm('{"timeout_seconds": 60}')
    mine = [int(number) for number in numbers.split(",")][rank_in(comm)]
    seen = []
    for _ in range(mine):
        tensor = make_tensor([1.0] * 5000)
        check(lib.ds_comm_all_reduce(comm, tensor, kSum))
        seen.append(int(read(tensor, 5000)[-1]))
        lib.ds_tensor_destroy(tensor)
    check(lib.ds_comm_join(comm))
    tensor = make_tensor([1.0])
    check(lib.ds_comm_all_reduce(comm, tensor, kSum))  # the group goes on
    print("sums", seen, int(read(tensor, 1)[0]), flush=True)
    check(lib.ds_comm_finalize(comm))
    lib.ds_comm_destroy(comm)


def mismatch(kind):
    comm = make_comm('{"timeout_seconds": 60, "checked": true}')
    odd = rank_in(comm) == 2
    for step in range(3):
        tensor = make_tensor([1.0] * (7 if kind == "shape" and odd and step == 2 else 8))
        if kind == "order" and odd and step == 2:
            check(lib.ds_comm_broadcast(comm, tensor, 0))
        else:
            check(lib.ds_comm_all_reduce(comm, tensor, kSum))


def sums(options):
    comm = make_comm(options)
    tensor = make_tensor([1.0] * 100000)
    print("ready", flush=True)
    while True:
        check(lib.ds_comm_all_reduce(comm, tensor, kSum))


{"batches": batches, "mismatch": mismatch, "sums": sums}[sys.argv[1]](sys.argv[2])
