"""Behaves badly towards its process: a thread that never ends, closed streams, rows that are no JSON."""

import sys
import threading

import verifiers.v1 as vf

__all__ = ["RudeTaskset"]

threading.Thread(target=threading.Event().wait).start()
sys.stdout.close()
sys.stderr.close()


class RudeData(vf.TaskData):
    odd: str | float = ""


class RudeTask(vf.Task[RudeData]):
    @vf.reward
    async def always(self, trace) -> float:
        return 1.0


class RudeConfig(vf.TasksetConfig):
    odd: str = ""


class RudeTaskset(vf.Taskset[RudeTask, RudeConfig]):
    def load(self):
        yield RudeTask(RudeData(prompt="first"), self.config.task)
        odd = {"nan": float("nan"), "surrogate": "a lone \udcff"}.get(self.config.odd, "")
        yield RudeTask(RudeData(prompt="second", odd=odd), self.config.task)
