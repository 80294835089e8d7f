"""Questions about captures: what a value came from, which was the first that is not finite, where two captures part.

A question reads the records and payloads of captures. Of reading, ``reading/facade/questions.py`` alone knows this
folder: two of the questions are methods of a trace.
"""
