"""What runs when, in prose; no code.

A capture turns one run of a model into events. ``driver`` opens a stream, asks ``model`` to describe
the modules, ``inputs`` to copy the arguments, ``wrap`` to put wrappers in the place of torch's public
functions, and ``sweep`` to replace references that were bound by name before. From then on:

* A wrapped function finds the listener in ``wrap`` and hands it the call (``recorder.Recorder.called``).
  Another thread's calls go straight on.
* The recorder makes the original call between two readings of the clock. If a wrapped call ran inside
  and labelled the result, that inner call is the op and nothing more is recorded.
* Otherwise it takes the arguments apart (``template``): tensors become value numbers, read from an attribute of
  the tensor, and everything else plain data. It names the call site (``callsite``) by the frames up to
  the innermost module's forward. It numbers the results, writes their numbers onto them, and
  appends one flat row.
* Before a call that writes in place, values kept by reference that share the memory are copied.
* A module's forward is wrapped per instance for the length of the capture (``model``); entering and leaving
  are events, and so are the first reading and each writing of a buffer.
* A capture that is to be run again (``replayable``) also tells what Python takes out of tensors (``taking``), and
  remembers where tensors from outside stood (``outside``).

When the forward ends, in whatever way, everything is put back as it was; then the values whose wanting
depends on final labels are settled, and the stream is closed.

The recorder knows nothing of labels, layers or depths: those are meanings, and projections find them.
"""
