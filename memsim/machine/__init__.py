"""The simulated machine. The only place that knows simpy; it reads traces and knows nothing of attention."""

from memsim.machine.replay import LaunchTiming, RunTiming, replay

__all__ = ["LaunchTiming", "RunTiming", "replay"]
