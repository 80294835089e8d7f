"""Autograd's graph as backward passes told it: nodes, their ops and modules, where gradients came, what ran."""
