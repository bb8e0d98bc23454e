"""Two seats at one task: a solver and a critic, and the better of the solver's attempts."""

import verifiers.v1 as vf

from rh_env import QuickHarness, QuickHarnessConfig, SayTask, SayTaskset, SayTasksetConfig

__all__ = ["PairEnv", "PairEnvConfig", "PairTaskset", "QuickHarness", "QuickHarnessConfig"]


class PairTaskset(SayTaskset):
    pass


class PairEnvConfig(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()
    """Attempts the task."""
    critic: vf.AgentConfig = vf.AgentConfig(max_turns=1)
    """Says what it thinks of the attempts; it is not trained."""
    attempts: int = 2
    """How often the solver tries."""
    fail_run: bool = False
    """Whether the episode raises after the first attempt."""


class PairEnv(vf.Env[PairEnvConfig]):
    async def setup(self, agents):
        agents.critic.trainable = False

    async def run(self, task, agents):
        traces = []
        for _ in range(self.config.attempts):
            traces.append(await agents.solver.run(task))
            if self.config.fail_run:
                raise RuntimeError("the run was told to fail")
        replies = "\n".join(trace.last_reply for trace in traces)
        await agents.critic.run(vf.Task(vf.TaskData(idx=task.data.idx, prompt=f"which is better?\n{replies}")))

    async def finalize(self, task, episode):
        own = [trace for trace in episode.traces if trace.agent.name == "solver"]
        top = max(trace.reward for trace in own)
        for trace in own:
            trace.record_metric("best", float(trace.reward == top))
