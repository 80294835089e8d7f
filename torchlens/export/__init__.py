"""The graph of a capture for other programs: as a networkx graph, as GraphML, as JSON.

``graph`` is what all of them hold: nodes and edges, exactly as the records have them.
"""

from torchlens.export.graph import VERSION
from torchlens.export.graph_json import to_json
from torchlens.export.graph_networkx import to_graphml, to_networkx

__all__ = ["VERSION", "to_graphml", "to_json", "to_networkx"]
