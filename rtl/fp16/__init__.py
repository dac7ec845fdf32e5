"""Binary16 adder, multiplier and the rounding stage they share."""
