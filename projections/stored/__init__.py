"""Tables brought into canonical form, and those that were stored with a capture; streams without left-out payloads."""
