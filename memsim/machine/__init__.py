"""The simulated machine. The only place that knows simpy; it reads traces and knows nothing of attention."""

from memsim.machine.compiled import Compiled
from memsim.machine.parts import PARTS, check_parts
from memsim.machine.replay import Launched, replay
from memsim.machine.timing import LaunchTiming, Progress, RunTiming

__all__ = ["PARTS", "Compiled", "LaunchTiming", "Launched", "Progress", "RunTiming", "check_parts", "replay"]
