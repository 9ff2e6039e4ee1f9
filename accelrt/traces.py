"""accelrt.tools.traces, and the modules in it, by their public names."""

from accelrt.tools.traces import __all__ as __all__
from accelrt.tools.traces import __path__ as __path__
from accelrt.tools.traces import load as load
