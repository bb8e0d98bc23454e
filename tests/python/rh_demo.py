"""A small taskset for comparing configurations: fields of several types, one task."""

import verifiers.v1 as vf


class DemoConfig(vf.TasksetConfig):
    min_turns: int = 1
    power: float = 4.0
    words: list[str] = []
    exact: bool = False


class DemoTaskset(vf.Taskset[vf.Task, DemoConfig]):
    def load(self):
        yield vf.Task(vf.TaskData(prompt="Say hello."), self.config.task)


__all__ = ["DemoTaskset"]
