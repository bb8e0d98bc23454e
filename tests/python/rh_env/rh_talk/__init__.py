"""An endless taskset whose env talks back: it says another number after every reply."""

import itertools

import verifiers.v1 as vf

from rh_env.harness import QuickHarness, QuickHarnessConfig

__all__ = ["QuickHarness", "QuickHarnessConfig", "TalkEnv", "TalkEnvConfig", "TalkTaskset", "TalkTasksetConfig"]


class TalkData(vf.TaskData):
    number: int


class TalkTask(vf.Task[TalkData, vf.State, vf.TaskConfig]):
    pass


class TalkTasksetConfig(vf.TasksetConfig):
    pass


class TalkTaskset(vf.Taskset[TalkTask, TalkTasksetConfig]):
    INFINITE = True

    def load(self):
        for number in itertools.count():
            yield TalkTask(TalkData(prompt=f"count on from {number}", number=number), self.config.task)


class TalkEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(max_turns=12)
    turns: int = 3
    """How many replies are asked for."""


class TalkEnv(vf.Env[TalkEnvConfig]):
    async def run(self, task, agents):
        replies = []
        async with agents.player.interaction(task) as talk:
            segment = await talk.turn()
            while not segment.terminated:
                replies.append(segment.last_reply)
                if len(replies) == self.config.turns:
                    break
                segment = await talk.turn(f"and after {task.data.number + len(replies)}?")
        talk.trace.record_reward("turns", float(len(replies)) / self.config.turns, 1.0)
