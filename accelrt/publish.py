"""accelrt.tools.publish by its public name."""

from accelrt.tools.publish import *  # noqa: F403
