"""Says a short text back, word for word.

The reward is 1 for the very text of the prompt. The keys of `task` make rollouts fail, wait, die or grow.
"""

import asyncio
import os
import sys
import time
from typing import Literal

import verifiers.v1 as vf

from rh_env.harness import QuickHarness, QuickHarnessConfig

__all__ = ["QuickHarness", "QuickHarnessConfig", "SayTaskset", "SayTasksetConfig"]


class SayData(vf.TaskData):
    answer: str


class SayTaskConfig(vf.TaskConfig):
    fail: Literal["no", "setup", "reward", "finalize"] = "no"
    """Where a rollout raises."""
    slow: float = 0
    """Seconds that the setup waits, and can be cancelled in."""
    block: float = 0
    """Seconds that the setup holds up the whole process."""
    die: bool = False
    """Whether the setup ends the process, without a word."""
    once: str | None = None
    """A file: `block` and `die` happen only while it is not there, and make it."""
    big: int = 0
    """Mebibytes that the setup puts into the trace."""


class SayTask(vf.Task[SayData, vf.State, SayTaskConfig]):
    async def setup(self, trace, runtime):
        config = self.config
        if config.big:
            trace.info["blob"] = "x" * (config.big << 20)
        if config.fail == "setup":
            raise RuntimeError("the setup was told to fail")
        trouble = (config.block or config.die) and not (config.once and os.path.exists(config.once))
        if trouble and config.once:
            open(config.once, "w").close()
        if trouble and config.block:
            time.sleep(config.block)
        if trouble and config.die:
            print("last words of a worker", file=sys.stderr, flush=True)
            os._exit(3)
        if config.slow:
            trace.info["waiting"] = True
            await asyncio.sleep(config.slow)

    async def finalize(self, trace, runtime):
        if self.config.fail == "finalize":
            raise RuntimeError("finalize was told to fail")

    @vf.reward
    async def exact(self, trace) -> float:
        if self.config.fail == "reward":
            raise RuntimeError("the reward was told to fail")
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class SayTasksetConfig(vf.TasksetConfig):
    count: int = 8
    """How many tasks there are."""
    pad: int = 0
    """Characters that are added to every row."""
    broken_at: int | None = None
    """The row whose making raises."""
    wordy: bool = False
    """Whether loading prints a lot."""
    task: SayTaskConfig = SayTaskConfig()


class SayTaskset(vf.Taskset[SayTask, SayTasksetConfig]):
    def load(self):
        if self.config.wordy:
            print('{"row": "no row, but print"}\n' * 1000)
            print("noise " * 1000, file=sys.stderr)
        for number in range(self.config.count):
            if number == self.config.broken_at:
                raise ValueError(f"row {number} was told to be broken")
            text = f"say {number} and nothing else"
            extra = {"padding": "p" * self.config.pad} if self.config.pad else {}
            data = PaddedData if extra else SayData
            yield SayTask(data(prompt=text, answer=text, name=f"say-{number}", **extra), self.config.task)


class PaddedData(SayData):
    padding: str
