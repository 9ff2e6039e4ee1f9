"""accelrt.tools.publish by its public name."""

from accelrt.tools.publish import *  # noqa: F403
from accelrt.tools.publish import __all__ as __all__
