"""A taskset with a tool server: the tool knows the answer."""

import verifiers.v1 as vf

from rh_env.harness import QuickHarness, QuickHarnessConfig
from rh_tools.server import BookConfig, Book

__all__ = ["QuickHarness", "QuickHarnessConfig", "ToolsTaskset", "ToolsTasksetConfig"]


class ToolsData(vf.TaskData):
    answer: str


class ToolsTask(vf.Task[ToolsData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def found(self, trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.metric
    async def tool_messages(self, trace) -> float:
        return float(sum(node.message.role == "tool" for node in trace.nodes))


class ToolsTasksetConfig(vf.TasksetConfig):
    book: BookConfig = BookConfig()
    """The tool server."""


class ToolsTaskset(vf.Taskset[ToolsTask, ToolsTasksetConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Book(config.book)]

    def load(self):
        for number in range(4):
            prompt = f"what stands on page {number}?"
            yield ToolsTask(ToolsData(prompt=prompt, answer=f"word-{number}"), self.config.task)
