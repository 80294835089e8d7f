"""The writing side of backward passes: what runs when the autograd engine runs over nodes of a live capture.

``engine`` stands where torch's Python code calls the engine, has the graph walked (``walking``) and finds the captures
that a run belongs to. Of each, the ``diary`` opens a pass (``closing``) and hooks the nodes that were found
(``hooks``); the hooks append events. A run that came another way is noticed by hooks that stay. ``policy`` says which
gradients are kept, ``making`` what nodes the run made itself, ``triggers`` what the verbs of a trace do.

No field of a record is computed here.
"""
