"""Matrix processing unit: the systolic array with its issue front end and drain."""

from .mpu import MPU
from .pe import PE

__all__ = ["MPU", "PE"]
