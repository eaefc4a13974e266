"""Memory that a kernel asks for before it reads or writes it.

Kernels that read rows at random wait for memory most of their time: a processor finds out too late
which row comes next. Asked for some rows ahead, several are under way at once. An address is only a
hint: one outside of an array does no harm.

These are written into the kernel itself: numba would count references to the arrays that a function
is given, with locked instructions, in every round of a loop.
"""

from __future__ import annotations

from typing import Any

from dgl_heta.system.jit import COMPILES

AHEAD = 8
"""How many rows ahead kernels ask."""
LINE, MOST = 64, 512
"""Bytes of a cache line, and of a row that are asked for: the processor itself sees that a wider
row is read on."""

if COMPILES:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    def _row(typing: Any, array: Any, row: Any) -> Any:
        """Ask for `array[row]`, of an array of any number of dimensions."""
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            there = context.make_array(signature.args[0])(context, builder, arguments[0])
            _ask(builder, there, context.cast(builder, arguments[1], signature.args[1],
                                              types.intp))
            return context.get_dummy_value()
        return types.void(array, row), code

    def _ahead(typing: Any, array: Any, rows: Any, at: Any) -> Any:
        """Ask for the row of `array` that comes :data:`AHEAD` after the one at a place in `rows`.
        """
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            there, listed = (context.make_array(signature.args[i])(context, builder, arguments[i])
                             for i in range(2))
            position = context.cast(builder, arguments[2], signature.args[2], types.intp)
            position = builder.add(position, position.type(AHEAD))
            (count,) = cgutils.unpack_tuple(builder, listed.shape)
            with builder.if_then(builder.icmp_signed("<", position, count)):
                (stride,) = cgutils.unpack_tuple(builder, listed.strides)
                begin = builder.bitcast(listed.data, _POINTER)
                number = builder.load(builder.bitcast(
                    builder.gep(begin, [builder.mul(position, stride)]), listed.data.type))
                _ask(builder, there, context.cast(builder, number, signature.args[1].dtype,
                                                  types.intp))
            return context.get_dummy_value()
        return types.void(array, rows, at), code

    prefetch_row: Any = intrinsic(_row)
    prefetch: Any = intrinsic(_ahead)
    _POINTER, _WORD = ir.IntType(8).as_pointer(), ir.IntType(32)

    def _ask(builder: Any, array: Any, row: Any) -> None:
        """The instructions for a row's lines."""
        stride = cgutils.unpack_tuple(builder, array.strides)[0]
        call = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [_POINTER, _WORD, _WORD, _WORD]),
            "llvm.prefetch.p0i8")
        begin = builder.gep(builder.bitcast(array.data, _POINTER), [builder.mul(row, stride)])
        most = stride.type(MOST)
        end = builder.select(builder.icmp_signed("<", stride, most), stride, most)
        with cgutils.for_range_slice(builder, stride.type(0), end, stride.type(LINE),
                                     stride.type) as (offset, _):
            builder.call(call, [builder.gep(begin, [offset]), _WORD(0), _WORD(3), _WORD(1)])
else:
    def prefetch_row(array: Any, row: Any) -> None:
        """Ask for `array[row]`; nothing calls it where nothing is compiled."""

    def prefetch(array: Any, rows: Any, at: Any) -> None:
        """Ask for the row that comes later in `rows`; nothing calls it where nothing is compiled.
        """
