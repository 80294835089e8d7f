"""Which items of a rolled picture lie on a loop together.

Gives  ``components``: by item a number, equal where each of two is reached from the other.
Source Tarjan 1972, Depth-first search and linear graph algorithms, without a stack of Python's.
"""

from __future__ import annotations

from collections.abc import Iterable


def components(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """The strongly connected components of so many items, from the edges between them."""
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        after[source].append(target)
    found = [-1] * count
    seen, lowest = [-1] * count, [0] * count
    waiting: list[int] = []
    number = 0
    for root in range(count):
        if seen[root] >= 0:
            continue
        path = [(root, 0)]
        while path:
            item, at = path.pop()
            if at == 0:
                seen[item] = lowest[item] = number
                number += 1
                waiting.append(item)
            elif (inner := after[item][at - 1]) >= 0 and found[inner] < 0:
                lowest[item] = min(lowest[item], lowest[inner])
            while at < len(after[item]) and seen[after[item][at]] >= 0:
                if found[after[item][at]] < 0:
                    lowest[item] = min(lowest[item], seen[after[item][at]])
                at += 1
            if at < len(after[item]):
                path += [(item, at + 1), (after[item][at], 0)]
            elif lowest[item] == seen[item]:
                while found[item] < 0:
                    found[waiting.pop()] = item
    return found
