"""Pictures made by hand, and names that somebody would choose to break out of a drawing."""

from __future__ import annotations

from torchlens.viz import Cluster, Edge, Node, Picture

SAVED = frozenset[str]({"saved"})

HOSTILE = (
    'quote " brace } bracket ]; n9 [label=x]',
    "back\\slash \\N \\G \\l end\\",
    "<script>alert(1)</script>",
    "</text></g></svg>",
    "]]> <!-- --> <![CDATA[",
    "&amp; &lt; &#60; &undefined;",
    "line\nfeed\r\ttab",
    "\x1b[31mred\x1b[0m \x07 \x00",
    "right-to-left \u202e override, joined \u200d, lone \ud800, mark \ufeff",
    "wide 漢字テスト, emoji 🧪",
    "x" * 2_000_000,
    "",
    "   ",
)


def op(number: int, *marks: str, cluster: int = -1, title: str | None = None) -> Node:
    return Node(
        key=f"ops/{number}",
        kind="op",
        title=title if title is not None else f"relu_{number}_{number}",
        lines=("(2, 3) float32",),
        table="ops",
        rows=(number,),
        cluster=cluster,
        marks=frozenset(marks),  # type: ignore[arg-type]
    )


def small() -> Picture:
    """A node of each kind, each mark, each kind of edge, and modules in each other."""
    kinds = ("input", "output", "buffer", "param", "module", "grad_fn", "failed", "ops", "grad_fns", "params")
    clusters = (
        Cluster(key="a", title="encoder", lines=("Encoder",), table="module_calls", rows=(1,)),
        Cluster(key="b", title="encoder.0", lines=("Block",), parent=0, table="module_calls", rows=(2,), times=12),
        Cluster(key="c", title="", parent=1, table="", times=3),
    )
    nodes = [op(0, "saved", cluster=2), op(1, "inplace", "grad", cluster=1), op(2, "opaque", "bool", cluster=0)]
    nodes += [op(3, "halted", "orphan", "checkpointed", "made", "internal_source")]
    nodes += [
        Node(
            key=kind, kind=kind, title=f"the {kind}", lines=("a line", "another"), table="", rows=(), passes=2, times=3
        )
        for kind in kinds
    ]
    edges = [
        Edge(source=4, target=0),
        Edge(source=0, target=1, label="mask", count=3),
        Edge(source=1, target=2),
        Edge(source=2, target=5),
        Edge(source=6, target=2, kind="buffer_write"),
        Edge(source=9, target=2, kind="pair"),
        Edge(source=9, target=9, kind="recurrent", label="loop"),
        Edge(source=1, target=0, kind="repeat"),
        Edge(source=9, target=3, kind="backward"),
    ]
    return Picture(
        title="Small", caption=("14 nodes", "nothing hidden"), nodes=tuple(nodes), edges=tuple(edges), clusters=clusters
    )


def hostile() -> Picture:
    """Every text of it is one of the names above."""
    nodes = tuple(
        Node(key=name[:9], kind="op", title=name, lines=(name, "plain"), table="ops", rows=(row,), cluster=row % 2 - 1)
        for row, name in enumerate(HOSTILE)
    )
    edges = tuple(Edge(source=row, target=row + 1, label=name) for row, name in enumerate(HOSTILE[1:]))
    clusters = (Cluster(key="c", title=HOSTILE[0], lines=HOSTILE, table="modules", rows=(0,)),)
    return Picture(title=HOSTILE[1], caption=HOSTILE, nodes=nodes, edges=edges, clusters=clusters)


def chain(length: int, within: int = 0) -> Picture:
    """So many ops in a row, in so many modules around each other."""
    clusters = tuple(
        Cluster(key=str(depth), title=f"m{depth}", parent=depth - 1, table="modules", rows=(depth,))
        for depth in range(within)
    )
    nodes = tuple(op(row, cluster=within - 1) for row in range(length))
    edges = tuple(Edge(source=row, target=row + 1) for row in range(length - 1))
    return Picture(title="Chain", nodes=nodes, edges=edges, clusters=clusters)
