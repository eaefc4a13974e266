"""Compiles the Triton kernels for GPUs that are not here, as far as Triton 2.2 goes without one:
down to machine code. Prints what it compiled."""

from __future__ import annotations

import triton
from dgl_heta_hifuse import triton_kernels
from triton.compiler import compiler

compiler.make_stub = lambda *args, **kwargs: ""  # what launches a kernel is linked with the driver
compiler.CompiledKernel = lambda fn, path, metadata, asm: asm

COUNTS, EDGES = ["i32"] * 3, ["*i64"]


def main() -> None:
    for dtype in ("*fp32", "*fp64"):
        for name, signature, constants in (
                ("_sums", [dtype, "*i32", *EDGES, dtype, "i32"], [True, 64]),
                ("_attend", [dtype] * 2 + EDGES + [dtype] * 3 + COUNTS, [16]),
                ("_attend_backward", [dtype] * 2 + EDGES + [dtype] * 6 + COUNTS, [16])):
            for capability in (80, 90):
                asm = triton.compile(
                    getattr(triton_kernels, name), signature=dict(enumerate(signature)),
                    constants={len(signature) + i: c for i, c in enumerate(constants)},
                    cc=capability)
                assert asm["cubin"]
                print(name, dtype, capability)


if __name__ == "__main__":
    main()
