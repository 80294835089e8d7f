"""Amounts and how they are said, in Python and in the browser: the table that holds the two to one manner."""

from __future__ import annotations

from typing import Final

BYTES: Final = (
    (0, "0 B"),
    (1023, "1023 B"),
    (1024, "1.0 KB"),
    (1280, "1.2 KB"),  # just between two: to the even one
    (1408, "1.4 KB"),
    (1536, "1.5 KB"),
    (1048575, "1.0 MB"),  # 1024.0 KB
    (5 << 30, "5.0 GB"),
    ((1 << 40) - 1, "1.0 TB"),
    (5 << 50, "5120.0 TB"),
)

TIMES: Final = (
    (0.0, "0 s"),
    (4e-10, "0.4 ns"),
    (5e-9, "5 ns"),
    (9.9949e-7, "999 ns"),
    (9.996e-7, "1 us"),
    (2.5e-6, "2.5 us"),
    (0.000193, "193 us"),
    (0.0312, "31.2 ms"),
    (0.9996, "1 s"),
    (1.125, "1.12 s"),  # just between two
    (1.375, "1.38 s"),
    (3.0, "3 s"),
    (59.96, "60 s"),
    (90.0, "1.5 min"),
    (7200.0, "2.0 h"),
)

FLOPS: Final = (
    (0, "0 FLOPs"),
    (999, "999 FLOPs"),
    (1000, "1 KFLOPs"),
    (1460, "1.46 KFLOPs"),
    (2005, "2 KFLOPs"),  # 2.00499 in binary
    (10250, "10.2 KFLOPs"),  # just between two
    (999_499, "999 KFLOPs"),
    (999_900, "1 MFLOPs"),
    (1_234_567, "1.23 MFLOPs"),
    (7 * 10**12, "7 TFLOPs"),
    (10**20, "100,000 PFLOPs"),
)
