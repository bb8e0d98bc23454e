"""A taskset of verifiers whose name and rows are those of ours, so that its runs can be scored anew here. It has a harness
that calls the model in process."""

import json

import httpx

import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

__all__ = ["Gsm8kTaskset", "Gsm8kConfig", "PlainHarness", "PlainHarnessConfig"]


class Gsm8kData(vf.TaskData):
    answer: str


class Gsm8kTask(vf.Task[Gsm8kData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def correct(self, trace) -> float:
        if "fail" in self.data.answer:
            raise ValueError("this row cannot be scored")
        return float(trace.last_reply.strip().endswith("#### " + self.data.answer))


class Gsm8kConfig(vf.TasksetConfig):
    path: str = ""
    flavour: str = "plain"


class Gsm8kTaskset(vf.Taskset[Gsm8kTask, Gsm8kConfig]):
    def load(self):
        for line in open(self.config.path):
            row = json.loads(line)
            data = Gsm8kData(prompt=row["question"], answer=row["answer"].split("#### ")[1])
            yield Gsm8kTask(data, self.config.task)


class PlainHarnessConfig(vf.HarnessConfig):
    pass


class PlainHarness(vf.Harness[PlainHarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        body = {"model": ctx.model, "messages": [{"role": "user", "content": data.prompt}]}
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(timeout=None) as client:
            response = await client.post(f"{endpoint}/chat/completions", json=body, headers=headers)
            response.raise_for_status()
        return ProgramResult(exit_code=0, stdout="", stderr="")
