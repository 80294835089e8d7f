"""Artifacts: a capture as a folder of files that need nothing of the process that wrote them."""
