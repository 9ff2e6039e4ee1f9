"""The modules of accelrt.tools.viewer by their public names."""

from accelrt.tools.viewer import __path__ as __path__
