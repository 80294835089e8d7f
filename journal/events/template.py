"""A Python value as plain data, its tensors taken out.

Numbers, strings, None and booleans stand for themselves. Every other value is a tuple: the empty one
marks the place of the next tensor, a longer one starts with a tag from this closed list.
"""

from __future__ import annotations

from typing import Final

HOLE: Final = ()
"""Place of a tensor; the tensors are listed beside the template, in order."""

TUPLE: Final = 1  # (TUPLE, *items)
LIST: Final = 2  # (LIST, *items)
DICT: Final = 3  # (DICT, key, value, key, value, ...)
NAMED: Final = 4  # (NAMED, class, field names, *items): named tuple, dataclass, model output
DTYPE: Final = 5  # (DTYPE, "float32")
DEVICE: Final = 6  # (DEVICE, "cuda:0")
SLICE: Final = 7  # (SLICE, start, stop, step)
ELLIPSIS: Final = 8  # (ELLIPSIS,)
MEMORY_FORMAT: Final = 9  # (MEMORY_FORMAT, "channels_last")
LAYOUT: Final = 10  # (LAYOUT, "strided")
COMPLEX: Final = 11  # (COMPLEX, real, imaginary)
BIG_INT: Final = 12  # (BIG_INT, decimal text), beyond 64 bits
CALLABLE: Final = 13  # (CALLABLE, import path)
OPAQUE: Final = 14  # (OPAQUE, qualified class name, short text): not reproduced
SET: Final = 15  # (SET, *items)
SIZE: Final = 16  # (SIZE, *items): torch.Size
RANGE: Final = 17  # (RANGE, start, stop, step)
TEXT: Final = 18  # (TEXT, escaped text): a string that is not valid UTF-8, backslash-escaped
LONG_TEXT: Final = 19  # (LONG_TEXT, first characters, length)
LONG: Final = 20  # (LONG, tag, first items, length): a container too long to keep
BYTES: Final = 21  # (BYTES, length)
ENUM: Final = 22  # (ENUM, qualified class name, member name)
DEEP: Final = 23  # (DEEP,): nested deeper than is kept
GENERATOR: Final = 24  # (GENERATOR, "cpu"): a random generator; its state is the payload that the call names
