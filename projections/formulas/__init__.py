"""How much work a call is: formulas for torch calls and for dispatched operators."""
