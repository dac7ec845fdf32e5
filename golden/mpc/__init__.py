"""The core (MPC): instruction set, functional simulator and compiler."""
